"""Text to token ids and back, with one vocabulary for all texts, in the format of the `tokenizers` library.

    char   every distinct character of the texts is a token; others become UNK
    bpe    byte-pair merges over UTF-8 bytes: no text is unknown, and white space is kept as it is
    byte   bpe without merges: byte b of the text has the id 4 + b, and nothing is learned

Texts are brought to Unicode normal form C first; beyond that, decode(encode(text)) == text for every text without UNK.
The special tokens have ids and no spelling: no text, not even "<eos>", is read as one or decoded to nothing.
"""

from __future__ import annotations

import json
import unicodedata
from typing import TYPE_CHECKING

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from tuneyard_pipelines.data.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tuneyard_pipelines.spec import Tokenizer

PAD, BOS, EOS, UNK = range(4)
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")
MIN_BPE_VOCAB_SIZE = len(SPECIALS) + 256


class TextTokenizer:
    """A vocabulary. Make one by `train` or `load`."""

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        self._library = library
        self._of_bytes = library.get_vocab_size() == len(_BYTES) and library.get_vocab() == _BYTES

    @classmethod
    def train(cls, texts: Iterable[str], config: Tokenizer) -> TextTokenizer:
        """Learn a vocabulary of `config.type` from `texts`; for bpe of at most `config.vocab_size` tokens.

        byte reads no text. Raises DataError for a bpe vocabulary that cannot hold the bytes.
        """
        if config.type == "byte":
            return cls(_byte_level(models.BPE(vocab=_BYTES, merges=[])))
        if config.type == "char":
            return cls(_char(texts))
        if config.vocab_size < MIN_BPE_VOCAB_SIZE:
            raise DataError(
                f"data.tokenizer.vocab_size: {config.vocab_size} is too small: bpe needs at least "
                f"{MIN_BPE_VOCAB_SIZE} tokens ({len(SPECIALS)} special ones and 256 bytes). "
                "Raise it, or take type: byte."
            )
        return cls(_bpe(texts, config.vocab_size))

    @property
    def vocab_size(self) -> int:
        """How many ids there are, special ones included."""
        return self._library.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Ids of the text alone: no BOS, no EOS."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, faster."""
        if self._of_bytes:  # a look-up: the library takes a hundred times as long and as much memory
            return [(_utf8(text) + np.int32(len(SPECIALS))).tolist() for text in texts]
        return [encoding.ids for encoding in self._library.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text up to the first EOS; special ids inside it are left out."""
        upto = ids[: ids.index(EOS)] if EOS in ids else ids
        return self._library.decode([token for token in upto if token >= len(SPECIALS)], skip_special_tokens=False)

    def unknown_share(self, text: str) -> float:
        """The share of the text's tokens that are UNK; 0 for an empty text."""
        ids = self.encode(text)
        return ids.count(UNK) / len(ids) if ids else 0.0

    def save(self, path: Path) -> None:
        """Write everything as one JSON file, which the `tokenizers` library reads too."""
        path.write_text(self._library.to_str(), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> TextTokenizer:
        """Read what `save` wrote. Raises DataError if the file is missing or holds something else."""
        try:
            library = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:  # the library raises nothing narrower
            raise DataError(
                f"{path}: no tokenizer can be read from this file ({error}). Prepare the data again."
            ) from error
        if tuple(library.id_to_token(special) for special in range(len(SPECIALS))) != SPECIALS:
            raise DataError(f"{path}: this tokenizer does not begin with {' '.join(SPECIALS)}. Prepare the data again.")
        return cls(library)


def _byte_alphabet() -> list[str]:
    """The character that stands for each byte where the library works on bytes (GPT-2's, Radford et al. 2019).

    Those that can be printed stand for themselves, the others for what follows U+00FF, in order.
    """
    printed = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printed]
    return [chr(byte) if byte in printed else chr(256 + others.index(byte)) for byte in range(256)]


_BYTES = {token: token_id for token_id, token in enumerate((*SPECIALS, *_byte_alphabet()))}


def _utf8(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(unicodedata.normalize("NFC", text).encode(), dtype=np.uint8)


def _char(texts: Iterable[str]) -> tokenizers.Tokenizer:
    alphabet = sorted({character for text in texts for character in unicodedata.normalize("NFC", text)})
    vocabulary = {token: token_id for token_id, token in enumerate((*SPECIALS, *alphabet))}
    # Byte-pair encoding without a merge: four times as fast as a model of words over text split by a pattern.
    library = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=SPECIALS[UNK]))
    library.normalizer = normalizers.NFC()
    library.decoder = decoders.Fuse()
    return library


def _bpe(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    learner = _byte_level(models.BPE())
    learner.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(SPECIALS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    # A trained tokenizer finds its special tokens in the text; one made anew from its vocabulary and merges does not.
    model = json.loads(learner.to_str())["model"]
    return _byte_level(models.BPE(vocab=model["vocab"], merges=[(left, right) for left, right in model["merges"]]))


def _byte_level(model: models.BPE) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(model)
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return library
