"""Documents as one stream of tokens, cut into windows: shuffled ones to train on, overlapping ones to score with.

The stream of a split is the tokens of every document followed by EOS, in order. A window predicts some of its tokens;
what it shows at each place is the token before, at the very start BOS.

    stream     a  b  EOS  c  d  e  EOS
    tokens_BT  BOS a  b | EOS c  d | e   PAD PAD        sequence_length 3, phase 0, before the shuffle
    next_BT    a  b  EOS| c   d  e | EOS PAD PAD

Shapes: B windows, T sequence length, N tokens of the stream.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from tuneyard_modules.language_modeling import LanguageBatch
from tuneyard_modules.masked_lm import Draws, MaskedBatch, MaskedSettings, mask_words
from tuneyard_pipelines.data.order import window_batches
from tuneyard_pipelines.data.stream import ALONE, Batch, Budget, Piece, Sharing, Stream
from tuneyard_pipelines.data.text_tokenizer import BOS, EOS, PAD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tuneyard_pipelines.data.tokens import EncodedSplit, Ints

_CODE_POINTS = 0x110000


class _Windows(Stream[Batch]):
    """The training windows of one trial, from any cursor on.

    In every pass the stream is cut at every `sequence_length` tokens from a random phase on, and the windows are
    shuffled; a pass predicts every token once, so that the first and the last window of a cutting may be short. A batch
    holds batch_tokens // sequence_length windows, one at least.
    """

    def __init__(
        self,
        encoded_train: EncodedSplit,
        *,
        sequence_length: int,
        batch_tokens: int,
        seed: int,
        budget: Budget,
        sharing: Sharing = ALONE,
    ) -> None:
        super().__init__(budget, sharing)
        self._text = _Text(encoded_train)
        self.tokens_per_pass = self._text.length
        self._length, self._batch_tokens, self._seed = sequence_length, batch_tokens, seed

    def _batches(self, number: int) -> list[Ints]:
        """The first token of each window; a window before the stream's start, at -k, lacks k tokens."""
        return window_batches(
            self.tokens_per_pass,
            sequence_length=self._length,
            batch_tokens=self._batch_tokens,
            seed=self._seed,
            number=number,
        )

    def _tokens(self, members: Ints) -> int:
        return int((self._ends(members) - np.maximum(members, 0)).sum())

    def _ends(self, members: Ints) -> Ints:
        ends: Ints = np.minimum(members + self._length, self.tokens_per_pass)
        return ends

    def _read(self, members: Ints, piece: Piece) -> LanguageBatch:
        starts_B = np.maximum(members, 0)
        return _batch(self._text, starts_B, self._ends(members), starts_B, piece.share)._replace(tokens=piece.tokens)


class WindowStream(_Windows[LanguageBatch]):
    """Windows in which every token is to be predicted from those before it."""

    def _build(self, piece: Piece) -> LanguageBatch:
        batch = self._read(piece.own, piece)
        if piece.silent:
            batch.next_BT[:] = PAD
        return batch


class MaskedStream(_Windows[MaskedBatch]):
    """Windows with masks in them, other ones in every pass, which follow from seed and position."""

    def __init__(self, encoded_train: EncodedSplit, settings: MaskedSettings, **windows: Any) -> None:
        """`windows` as of `WindowStream`."""
        super().__init__(encoded_train, **windows)
        self._settings = settings

    def _build(self, piece: Piece) -> MaskedBatch:
        whole = self._read(piece.members, piece)  # so that it does not matter who trains on what of it
        chance = np.random.SeedSequence([self._seed, piece.position]).generate_state(1, np.uint64)[0] >> np.uint64(1)
        generator = torch.Generator().manual_seed(int(chance))
        draws = Draws.of(whole.next_BT.shape, self._settings, generator)
        shown_BT, target_BT = (part[piece.rows] for part in mask_words(whole.next_BT, self._settings, draws))
        if piece.silent:
            target_BT[:] = PAD
        return MaskedBatch(shown_BT, target_BT, whole.tokens, whole.share)


def evaluation_windows(
    encoded_split: EncodedSplit, *, sequence_length: int, batch_tokens: int, stride: int | None = None
) -> list[LanguageBatch]:
    """Windows that together predict every token of a split exactly once, EOS included, each in much of its context.

    Sliding-window evaluation (Press et al. 2021, "Shortformer"; Hugging Face's "strided perplexity"): the first window
    predicts its `sequence_length` tokens; each further one moves on by `stride`, by default half of sequence_length,
    shows sequence_length tokens and counts its last `stride` only: those before stand as PAD in `next_BT`. So every
    token but those of the first window is predicted from more than sequence_length - stride tokens before it. The last
    window ends with the text, and counts what is left.

    Windows come in the order of the text: `next_BT != PAD`, row by row and batch by batch, are the tokens of the stream
    in their order, as `per_document` takes them. Raises ValueError for a stride outside of 1 to sequence_length.
    """
    stride = max(1, sequence_length // 2) if stride is None else stride
    if not 1 <= stride <= sequence_length:
        raise ValueError(f"a stride of {stride} tokens; a window of {sequence_length} can move on by 1 to its length")
    text = _Text(encoded_split)
    ends = np.append(np.arange(min(sequence_length, text.length), text.length, stride), text.length)
    counted = np.append(0, ends[:-1])
    starts = np.maximum(ends - sequence_length, 0)
    windows = max(1, batch_tokens // sequence_length)
    return [
        _batch(text, starts[rows], ends[rows], counted[rows], share=0.0)
        for rows in (slice(first, first + windows) for first in range(0, len(ends), windows))
    ]


def masked_windows(
    encoded_split: EncodedSplit, *, sequence_length: int, batch_tokens: int, settings: MaskedSettings, seed: int
) -> list[MaskedBatch]:
    """The text of a split in windows side by side, with masks whose places follow from the text and `seed` alone.

    So a model is asked for the same words whatever its window. Windows come in the order of the text, and
    `shown_BT != PAD`, row by row and batch by batch, are the tokens of the stream in their order.
    """
    text = _Text(encoded_split)
    ids_N = torch.from_numpy(text.at(np.arange(text.length)))
    draws = Draws.of(ids_N.shape, settings, torch.Generator().manual_seed(seed))
    shown_N, target_N = mask_words(ids_N, settings, draws)
    windows = max(1, batch_tokens // sequence_length)
    batches = []
    for first in range(0, text.length, windows * sequence_length):
        rows = [held[first : first + windows * sequence_length].split(sequence_length) for held in (shown_N, target_N)]
        shown_BT, target_BT = (pad_sequence(row, batch_first=True, padding_value=PAD) for row in rows)
        batches.append(MaskedBatch(shown_BT, target_BT, sum(map(len, rows[0]))))
    return batches


def per_document(encoded_split: EncodedSplit, values_N: NDArray[np.floating]) -> NDArray[np.floating]:
    """The sum over each document of a value of each of its tokens, EOS included; in the order of the split.

    `values_N` come in the order of the stream, in which `evaluation_windows` count tokens. Raises ValueError for
    another number.
    """
    ends = _Text(encoded_split).ends
    if len(values_N) != ends[-1]:
        raise ValueError(f"{len(values_N)} values for a text of {ends[-1]} tokens; give one for each")
    return np.add.reduceat(values_N, np.append(0, ends[:-1]))


def unknown_bits(characters: int) -> float:
    """What the characters that a tokenizer has no token for would cost: a uniform guess among all of Unicode for each.

    To be added to the bits of a split, so that a small vocabulary does not pass for a good model.
    """
    return characters * math.log2(_CODE_POINTS)


class _Text:
    """The stream of a split, without a copy of its tokens: EOS is put in where it is read."""

    def __init__(self, encoded_split: EncodedSplit) -> None:
        texts = encoded_split["text"]
        self.flat = texts.flat
        self.ends: Ints = texts.bounds[1:] + np.arange(1, len(texts.bounds))
        """The place after each document's EOS."""
        self.length = int(self.ends[-1])

    def at(self, places: Ints) -> Ints:
        """The tokens at these places; BOS at -1."""
        documents = np.searchsorted(self.ends, places, side="right")
        tokens: Ints = self.flat[np.clip(places - documents, 0, len(self.flat) - 1)].astype(np.int64)
        tokens[places == self.ends[documents] - 1] = EOS
        tokens[places < 0] = BOS
        return tokens


def _batch(text: _Text, starts_B: Ints, ends_B: Ints, counted_B: Ints, share: float) -> LanguageBatch:
    """Windows that show what precedes the tokens from starts_B to ends_B, and count those from counted_B on."""
    places_BT = starts_B[:, None] + np.arange(int((ends_B - starts_B).max()))
    inside_BT = places_BT < ends_B[:, None]
    counts_BT = inside_BT & (places_BT >= counted_B[:, None])
    tokens_BT, next_BT = np.full((2, *places_BT.shape), PAD, dtype=np.int64)
    tokens_BT[inside_BT] = text.at(places_BT[inside_BT] - 1)
    next_BT[counts_BT] = text.at(places_BT[counts_BT])
    return LanguageBatch(torch.from_numpy(tokens_BT), torch.from_numpy(next_BT), int(counts_BT.sum()), share)
