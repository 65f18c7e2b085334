"""Text to token ids and back, in the format of the `tokenizers` library.

    char      every distinct character of the texts is a token; others become UNK
    word      the most frequent words, each with the blank before it, marks and white space; others become UNK
    byte      byte b of the text's UTF-8 has the id 4 + b, and nothing is learned
    bpe       byte-pair merges over UTF-8 bytes (Sennrich et al. 2016): no text is unknown
    unigram   the likeliest pieces of words (Kudo 2018), found by expectation maximisation; a character that no text
              had is UNK, as is a rare one where all of them would take more than half of the vocabulary

Texts are brought to a Unicode normal form first; beyond that, decode(encode(text)) == text for every text without UNK:
white space is kept as it is. word and unigram put a blank before the text, so that a word is the same token at the
beginning, and take it away in decoding. What is written without blanks is no word to them: word takes each character
of Chinese, Japanese and Thai for one, or cuts Chinese by jieba; unigram finds its pieces by itself.

The special tokens have ids and no spelling: no text, not even "<eos>", is read as one or decoded to nothing.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from tuneyard_pipelines.data.errors import DataError
from tuneyard_pipelines.formulas import VocabSizes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tuneyard_pipelines.spec import Tokenizer

PAD, BOS, EOS, UNK = range(4)
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")
MIN_BPE_VOCAB_SIZE = len(SPECIALS) + 256
LEARNED_CHARACTERS = 1 << 28

_NORMAL_FORMS = {"nfc": normalizers.NFC, "nfkc": normalizers.NFKC}
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}"
# No pattern lets a letter and a mark into one chunk, so that no chunk can be spelled like a special token.
_WORDS = rf" ?[\w&&[^{_UNSPACED}]]+|[{_UNSPACED}]| ?[^\w\s]|\s"
_SEGMENTED = rf"\p{{Han}}+|{_WORDS}"
_LONGEST_CHUNK = 256  # characters, of bpe bytes: the time for a chunk grows with its square
_CHUNKS = rf" ?\w{{1,{_LONGEST_CHUNK}}}| ?[^\w\s]{{1,{_LONGEST_CHUNK}}}|\s{{1,{_LONGEST_CHUNK}}}(?!\S)|\s"
_SEGMENTER = "segmenter"  # the one key of a saved tokenizer that the library does not know
_RARE_STEP = 1e-4  # by which the library's trainer parts the scores of characters that it would have dropped


@dataclass(frozen=True)
class Piece:
    """A token of a text: what it stands for there, with U+FFFD for bytes that are no character by themselves."""

    text: str
    id: int
    utf8: bytes
    unknown: bool


class TextTokenizer:
    """A vocabulary. Make one by `train` or `load`."""

    def __init__(self, library: tokenizers.Tokenizer, segmenter: str = "none") -> None:
        self._library, self._segmenter = library, segmenter
        self._of_bytes = library.get_vocab_size() == len(_BYTES) and library.get_vocab() == _BYTES
        self._byte_level = isinstance(library.decoder, decoders.ByteLevel)
        self._plain = library.pre_tokenizer
        if segmenter == "jieba":
            library.pre_tokenizer = _then_jieba(self._plain)

    @classmethod
    def train(cls, texts: Iterable[str], config: Tokenizer) -> TextTokenizer:
        """Learn a vocabulary of `config.type` from `texts`; for word, bpe and unigram of at most `config.vocab_size`.

        These three read the first LEARNED_CHARACTERS (2 ** 28) characters, unigram twice; char reads all of them, byte
        none. The same texts give the same vocabulary. Raises DataError for a bpe vocabulary that cannot hold the bytes,
        and for a segmenter that is not installed; ValueError for an iterator where texts are read twice.
        """
        if config.type == "byte":
            return cls(_byte_level(models.BPE(vocab=_BYTES, merges=[]), config))
        if config.type == "char":
            return cls(_char(texts, config))
        if config.type == "word":
            return cls(_word(_first(texts), config), config.segmenter)
        if config.type == "unigram":
            return cls(_unigram(texts, config))
        if config.vocab_size < MIN_BPE_VOCAB_SIZE:
            raise DataError(
                f"data.tokenizer.vocab_size: {config.vocab_size} is too small: bpe needs at least "
                f"{MIN_BPE_VOCAB_SIZE} tokens ({len(SPECIALS)} special ones and 256 bytes). "
                "Raise it, or take type: byte."
            )
        return cls(_bpe(_first(texts), config))

    @property
    def vocab_size(self) -> int:
        """How many ids there are, special ones included."""
        return self._library.get_vocab_size()

    @property
    def requirements(self) -> tuple[str, ...]:
        """The packages, beside `tokenizers`, that cut text for it."""
        return ("rjieba",) if self._segmenter == "jieba" else ()

    def encode(self, text: str) -> list[int]:
        """Ids of the text alone: no BOS, no EOS."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, faster."""
        if self._of_bytes:  # a look-up: the library takes a hundred times as long and as much memory
            return [(self._utf8(text) + np.int32(len(SPECIALS))).tolist() for text in texts]
        return [encoding.ids for encoding in self._library.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text up to the first EOS; special ids inside it are left out."""
        upto = ids[: ids.index(EOS)] if EOS in ids else ids
        return self._library.decode([token for token in upto if token >= len(SPECIALS)], skip_special_tokens=False)

    def continuation(self, ids: Sequence[int]) -> str:
        """`decode` of ids that follow others: the blank before the first word is a part of the text."""
        before = [len(SPECIALS)]
        return self.decode([*before, *ids])[len(self.decode(before)) :]

    def pieces(self, text: str) -> list[Piece]:
        """What each token of `encode(text)` stands for; of an unknown one, the characters of `text` itself."""
        found = self._library.encode(text, add_special_tokens=False)
        if self._byte_level:
            spelled = (bytes(map(_BYTE_OF.__getitem__, token)) for token in found.tokens)
            return [Piece(b.decode(errors="replace"), i, b, False) for b, i in zip(spelled, found.ids, strict=True)]
        pieces = []
        for token, (start, end) in zip(found.ids, found.offsets, strict=True):
            spelling = text[start:end] if token == UNK else self._spellings[token]
            pieces.append(Piece(spelling, token, spelling.encode(), token == UNK))
        return pieces

    def unknown_share(self, text: str) -> float:
        """The share of the text's tokens that are UNK; 0 for an empty text."""
        ids = self.encode(text)
        return ids.count(UNK) / len(ids) if ids else 0.0

    def unknown_characters(self, text: str, ids: Sequence[int]) -> int:
        """How many characters the UNKs among `ids`, the `encode` of `text`, stand for."""
        if UNK not in ids:
            return 0
        known = sum(len(self._spellings[token]) for token in ids if token != UNK)
        return len(_normalized(self._library, text)) - known

    def save(self, path: Path) -> None:
        """Write everything as one JSON file.

        The `tokenizers` library reads it too, but not where a segmenter cuts: it would cut otherwise.
        """
        if self._segmenter == "none":
            path.write_text(self._library.to_str(), encoding="utf-8")
            return
        plain = tokenizers.Tokenizer(self._library.model)
        plain.normalizer, plain.decoder = self._library.normalizer, self._library.decoder
        plain.pre_tokenizer = self._plain
        described = {_SEGMENTER: self._segmenter, **json.loads(plain.to_str())}
        path.write_text(json.dumps(described, indent=2, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> TextTokenizer:
        """Read what `save` wrote. Raises DataError if the file is missing, holds something else or needs a package."""
        try:
            text, segmenter = path.read_text(encoding="utf-8"), "none"
            if _SEGMENTER in text[:100]:
                described = json.loads(text)
                segmenter, text = described.pop(_SEGMENTER), json.dumps(described)
            library = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing narrower
            raise DataError(
                f"{path}: no tokenizer can be read from this file ({error}). Prepare the data again."
            ) from error
        if tuple(library.id_to_token(special) for special in range(len(SPECIALS))) != SPECIALS:
            raise DataError(f"{path}: this tokenizer does not begin with {' '.join(SPECIALS)}. Prepare the data again.")
        return cls(library, segmenter)

    @cached_property
    def _spellings(self) -> list[str]:
        return [self._library.id_to_token(token) or "" for token in range(self.vocab_size)]

    def _utf8(self, text: str) -> NDArray[np.uint8]:
        return np.frombuffer(_normalized(self._library, text).encode(), dtype=np.uint8)


def save_tokenizers(tokenizers: Mapping[str, TextTokenizer], folder: Path) -> list[str]:
    """Write the tokenizers of columns to `folder`, one file where it is the same for all; the names of the files."""
    files = {tokenizer_file(column): tokenizer for column, tokenizer in tokenizers.items()}
    if len(set(map(id, tokenizers.values()))) == 1:
        files = {tokenizer_file(): next(iter(tokenizers.values()))}
    for name, tokenizer in files.items():
        tokenizer.save(folder / name)
    return list(files)


def load_tokenizers(folder: Path, columns: Sequence[str]) -> dict[str, TextTokenizer]:
    """Read what `save_tokenizers` wrote: the same object for all columns that share it. Raises DataError."""
    if (folder / tokenizer_file()).exists():
        return dict.fromkeys(columns, TextTokenizer.load(folder / tokenizer_file()))
    return {column: TextTokenizer.load(folder / tokenizer_file(column)) for column in columns}


def tokenizer_file(column: str = "") -> str:
    """The name of the file of the tokenizer of a column, or of all."""
    return f"tokenizer.{column}.json" if column else "tokenizer.json"


def sizes(tokenizers: Mapping[str, TextTokenizer]) -> VocabSizes:
    """How many ids a model needs for its targets, in the last column, and for sources that do not share theirs."""
    held = list(tokenizers.values())
    return VocabSizes(held[-1].vocab_size, None if held[0] is held[-1] else held[0].vocab_size)


def normalized(text: str, config: Tokenizer) -> str:
    """The text in the normal form of a tokenizer."""
    form = _normalizer(config)
    return form.normalize_str(text) if form else text


def segmenter_version(segmenter: str) -> str | None:
    """The version of the package that cuts; None for none. Raises DataError where it is not installed."""
    if segmenter == "none":
        return None
    try:
        return importlib.metadata.version("rjieba")
    except importlib.metadata.PackageNotFoundError:
        raise DataError(
            f"data.tokenizer.segmenter: {segmenter} needs the package rjieba, which is not installed. "
            "Install it (pip install rjieba), or take segmenter: none."
        ) from None


def _byte_alphabet() -> list[str]:
    """The character that stands for each byte where the library works on bytes (GPT-2's, Radford et al. 2019).

    Those that can be printed stand for themselves, the others for what follows U+00FF, in order.
    """
    printed = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printed]
    return [chr(byte) if byte in printed else chr(256 + others.index(byte)) for byte in range(256)]


_BYTES = {token: token_id for token_id, token in enumerate((*SPECIALS, *_byte_alphabet()))}
_BYTE_OF = {character: byte for byte, character in enumerate(_byte_alphabet())}


def _first(texts: Iterable[str]) -> Iterator[str]:
    """The texts up to LEARNED_CHARACTERS."""
    left = LEARNED_CHARACTERS
    for text in texts:
        yield text[:left]
        left -= len(text)
        if left <= 0:
            return


def _normalized(library: tokenizers.Tokenizer, text: str) -> str:
    return text if library.normalizer is None else library.normalizer.normalize_str(text)


def _normalizer(config: Tokenizer, *after: normalizers.Normalizer) -> normalizers.Normalizer | None:
    first = [] if config.normalization == "none" else [_NORMAL_FORMS[config.normalization]()]
    steps = [*first, *after]
    return normalizers.Sequence(steps) if len(steps) > 1 else next(iter(steps), None)


def _char(texts: Iterable[str], config: Tokenizer) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    library.normalizer = _normalizer(config)
    alphabet = sorted({character for text in texts for character in _normalized(library, text)})
    vocabulary = {token: token_id for token_id, token in enumerate((*SPECIALS, *alphabet))}
    # Byte-pair encoding without a merge: four times as fast as a model of words over text split by a pattern.
    library.model = models.BPE(vocab=vocabulary, merges=[], unk_token=SPECIALS[UNK])
    library.decoder = decoders.Fuse()
    return library


def _bpe(texts: Iterable[str], config: Tokenizer) -> tokenizers.Tokenizer:
    learner = _byte_level(models.BPE(), config)
    learner.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=config.vocab_size,
            special_tokens=list(SPECIALS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    # A trained tokenizer finds its special tokens in the text; one made anew from its vocabulary and merges does not.
    model = json.loads(learner.to_str())["model"]
    merges = [(left, right) for left, right in model["merges"]]
    return _byte_level(models.BPE(vocab=model["vocab"], merges=merges), config)


def _byte_level(model: models.BPE, config: Tokenizer) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(model)
    library.normalizer = _normalizer(config)
    chunks = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([chunks, pre_tokenizers.FixedLength(length=_LONGEST_CHUNK)])
    library.decoder = decoders.ByteLevel()
    return library


def _word(texts: Iterable[str], config: Tokenizer) -> tokenizers.Tokenizer:
    pattern = _WORDS if config.segmenter == "none" else _SEGMENTED
    learner = _spaced(models.WordLevel(), pattern, config)
    if config.segmenter != "none":
        learner.pre_tokenizer = _then_jieba(learner.pre_tokenizer)
    size = config.vocab_size - len(SPECIALS)
    learner.train_from_iterator(texts, trainers.WordLevelTrainer(vocab_size=size, show_progress=False))
    words = sorted(learner.get_vocab().items(), key=lambda word: word[1])
    vocabulary = {token: token_id for token_id, token in enumerate((*SPECIALS, *(word for word, _ in words)))}
    return _spaced(models.WordLevel(vocabulary, unk_token=SPECIALS[UNK]), pattern, config)


def _unigram(texts: Iterable[str], config: Tokenizer) -> tokenizers.Tokenizer:
    if iter(texts) is texts:
        raise ValueError("unigram reads its texts twice: give a list, or what can be iterated anew, not an iterator")
    learner = _spaced(models.Unigram(), _CHUNKS, config)
    counts = Counter(" ")
    for text in _first(texts):
        counts.update(_normalized(learner, text))
    size = config.vocab_size - len(SPECIALS)
    common = sorted(counts, key=lambda character: (-counts[character], character))[: size // 2]
    rare = re.compile(f"[^{re.escape(''.join(common))}]") if len(common) < len(counts) else None
    learned = _first(texts)
    if rare is not None:
        learned = (rare.sub("\n", normalized(text, config)) for text in learned)
    learner.train_from_iterator(learned, trainers.UnigramTrainer(vocab_size=size, show_progress=False))
    found = json.loads(learner.to_str())["model"]["vocab"]
    lowest = min(score for _, score in found)
    # The sums behind a score, and the order of characters that the trainer would have dropped, differ by the run.
    scores = {
        piece: lowest if len(piece) == 1 and score < lowest + _RARE_STEP * len(counts) else score
        for piece, score in found
    }
    rounded = {piece: round(score, 6) for piece, score in scores.items()}
    pieces = sorted(rounded.items(), key=lambda piece: (-piece[1], piece[0]))
    vocabulary = [*((special, 0.0) for special in SPECIALS), *pieces]
    return _spaced(models.Unigram(vocabulary, unk_id=UNK, byte_fallback=False), _CHUNKS, config)


def _spaced(model: models.Model, pattern: str, config: Tokenizer) -> tokenizers.Tokenizer:
    """A model over the chunks of `pattern`, with a blank before a text that does not begin with an unspaced script."""
    library = tokenizers.Tokenizer(model)
    unspaced = normalizers.Replace(Regex(rf"\A (?=[{_UNSPACED}])"), "")
    library.normalizer = _normalizer(config, normalizers.Prepend(" "), unspaced)
    library.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    library.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return library


def _then_jieba(chunks: pre_tokenizers.PreTokenizer) -> pre_tokenizers.PreTokenizer:
    """`chunks`, and runs of Chinese characters cut into words. Raises DataError where rjieba is not installed."""
    segmenter_version("jieba")
    return pre_tokenizers.Sequence([chunks, pre_tokenizers.PreTokenizer.custom(_Jieba())])


class _Jieba:
    """Cuts a chunk into the words that jieba finds in it: of others than Chinese it leaves one."""

    def pre_tokenize(self, text: tokenizers.PreTokenizedString) -> None:
        text.split(self._cut)

    def _cut(self, number: int, chunk: tokenizers.NormalizedString) -> list[tokenizers.NormalizedString | None]:
        import rjieba

        if not unicodedata.name(chunk.normalized[0], "").startswith("CJK"):
            return [chunk]
        words: list[tokenizers.NormalizedString | None] = []
        start = 0
        for word in rjieba.cut(chunk.normalized):
            words.append(chunk[start : start + len(word)])
            start += len(word)
        return words
