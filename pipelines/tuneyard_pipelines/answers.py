"""What a model says to texts: candidates with scores, how sure it was of each token, and what it could not read.

B batch, R candidates of a batch, S source or prompt length.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tuneyard_modules import decoding
from tuneyard_modules.decoding import Decoding, DecodingError, Hypothesis, Restarting, Stepper, WindowedStepper
from tuneyard_pipelines.data import BOS, EOS, PAD, UNK, TextTokenizer
from tuneyard_pipelines.data.text_tokenizer import SPECIALS
from tuneyard_pipelines.errors import InputError

BATCH_PATHS = 64
CONTINUATION_TOKENS = 64
LIKELIEST = 5


@dataclass(frozen=True)
class Token:
    """A token as it stands in a text, special ones as <eos>, and the probability that the model gave it there."""

    text: str
    id: int
    probability: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"token": self.text, "id": self.id, "probability": self.probability}


@dataclass(frozen=True)
class Step:
    """The token that was taken, and the likeliest in its place, best first; before any temperature or filter."""

    taken: Token
    likeliest: tuple[Token, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**self.taken.to_dict(), "likeliest": [token.to_dict() for token in self.likeliest]}


@dataclass(frozen=True)
class Candidate:
    """A text, its score, and its tokens where they were asked for.

    The score of a text that was made is its log-probability in nats over its length ** length_penalty, the end token
    counted in both; that of a given one is its log-probability.
    """

    text: str
    score: float
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What a model says to a text: the best first, or draws as they came; and what there is to know of the text.

    `cut` counts the tokens of the text that the model had no room to read; `notes` are sentences for the reader.
    """

    text: str
    candidates: tuple[Candidate, ...]
    cut: int
    notes: tuple[str, ...]


def decoding_of(settings: Mapping[str, Any]) -> Decoding:
    """The settings as `Decoding`. Raises InputError for one that it has not, or that it refuses."""
    known = [field.name for field in fields(Decoding)]
    if other := [name for name in settings if name not in known]:
        raise InputError(f"{', '.join(other)}: no setting of decoding; there are {', '.join(known)}")
    try:
        return Decoding(**settings)
    except DecodingError as cause:
        raise InputError(str(cause)) from cause


class Reading(NamedTuple):
    """How a model takes a text: what it reads before the first step, the token of that step, and what is amiss."""

    source: list[int]
    first: int
    cut: int = 0
    notes: tuple[str, ...] = ()


class Speaker(ABC):
    """Makes texts with a network, token by token; each task that does has its own.

    `length` is the most tokens that the network reads of a text, and, of a translation, writes.
    """

    banned_ids: tuple[int, ...] = ()

    def __init__(self, network: nn.Module, tokenizers: Mapping[str, TextTokenizer], length: int) -> None:
        self.network, self.length = cast("Stepper[Any]", network), length
        self.reads, *_, self.writes = [*tokenizers.values()] * 2
        self.device = device(network)

    @abstractmethod
    def reading(self, ids: Sequence[int]) -> Reading:
        """How the network takes a text of these tokens."""

    @abstractmethod
    def reference(self, text: str, given: str) -> tuple[Reading, list[int]]:
        """How it takes a text that `given` follows, and the tokens of that."""

    @abstractmethod
    def max_length(self, max_new_tokens: int | None) -> int:
        """The most tokens of what it says, the end token counted."""

    @abstractmethod
    def spelled(self, ids: Sequence[int], after: Reading) -> str:
        """The text of ids that it said after a text."""

    def answers(self, texts: Sequence[str], how: Decoding, *, steps: bool = False) -> list[Answer]:
        """What the model says to each text; with `steps` how sure it was of every token, too.

        A text's answer depends on no other text. Raises InputError for a beam larger than the vocabulary.
        """
        readings = [self.reading(ids) for ids in self.reads.encode_batch(list(texts))]
        said: list[tuple[Candidate, ...]] = [()] * len(texts)
        for rows, source_BS, first_B in self._batches(readings, BATCH_PATHS // max(how.beam, how.n_best)):
            found = self._said(source_BS, first_B, how)
            told: list[list[tuple[Step, ...]]] = [[()] * len(several) for several in found]
            if steps:
                told = self._steps(found, source_BS, first_B, how)
            for row, several, all_steps in zip(rows, found, told, strict=True):
                said[row] = tuple(
                    Candidate(self.spelled(one.ids, readings[row]), one.score, taken)
                    for one, taken in zip(several, all_steps, strict=True)
                )
        return [
            Answer(text, candidates, reading.cut, reading.notes)
            for text, candidates, reading in zip(texts, said, readings, strict=True)
        ]

    def scores(self, texts: Sequence[str], references: Sequence[str]) -> list[Candidate]:
        """How likely the model finds each reference after its text, as a whole and token by token.

        Raises InputError for a reference that is longer than the model can write.
        """
        if len(texts) != len(references):
            raise InputError(f"references: {len(references)} for {len(texts)} texts; give one for each")
        pairs = [self.reference(*pair) for pair in zip(texts, references, strict=True)]
        scored: list[Candidate] = [Candidate("", 0.0)] * len(pairs)
        for rows, source_BS, first_B in self._batches([reading for reading, _ in pairs], BATCH_PATHS):
            given = [pairs[row][1] for row in rows]
            all_steps = decoding.score(self.network, source_BS, given, bos_id=first_B, likeliest=LIKELIEST)
            for row, steps in zip(rows, all_steps, strict=True):
                nats = sum(step.log_probability for step in steps)
                scored[row] = Candidate(references[row], nats, self._shown(steps))
        return scored

    def _batches(self, readings: Sequence[Reading], most: int) -> Iterator[tuple[Sequence[int], Tensor, Tensor]]:
        """Rows that are read together, with their sources and the tokens of their first step."""
        for rows in self._alike(readings):
            for start in range(0, len(rows), max(1, most)):
                batch = rows[start : start + max(1, most)]
                sources = [torch.tensor(readings[row].source, dtype=torch.int64) for row in batch]
                source_BS = pad_sequence(sources, batch_first=True, padding_value=PAD).to(self.device)
                yield batch, source_BS, source_BS.new_tensor([readings[row].first for row in batch])

    def _alike(self, readings: Sequence[Reading]) -> list[list[int]]:
        """Rows that may stand in one batch: all of them, where padding is not read."""
        return [list(range(len(readings)))]

    def _said(self, source_BS: Tensor, first_B: Tensor, how: Decoding) -> list[list[Hypothesis]]:
        most = self.max_length(how.max_new_tokens)
        if how.beam > 1:
            try:
                return decoding.beam(
                    self.network,
                    source_BS,
                    bos_id=first_B,
                    eos_id=EOS,
                    max_length=most,
                    beam_size=how.beam,
                    length_penalty=how.length_penalty,
                    n_best=how.n_best,
                    banned_ids=self.banned_ids,
                )
            except DecodingError as cause:
                raise InputError(str(cause)) from cause
        drawn = decoding.sample(
            self.network,
            source_BS.repeat_interleave(how.n_best, dim=0),
            how,
            bos_id=first_B.repeat_interleave(how.n_best),
            eos_id=EOS,
            max_length=most,
            generators=[generator for _ in source_BS for generator in how.generators()],
            banned_ids=self.banned_ids,
        )
        return [drawn[start : start + how.n_best] for start in range(0, len(drawn), how.n_best)]

    def _steps(
        self, found: Sequence[Sequence[Hypothesis]], source_BS: Tensor, first_B: Tensor, how: Decoding
    ) -> list[list[tuple[Step, ...]]]:
        """The steps of every hypothesis of every row."""
        most = self.max_length(how.max_new_tokens)
        # What is shorter than it could be has said its end token.
        whole = [[*one.ids, EOS] if len(one.ids) < most - 1 else one.ids for several in found for one in several]
        index_R = torch.tensor([row for row, several in enumerate(found) for _ in several], device=self.device)
        steps = decoding.score(self.network, source_BS[index_R], whole, bos_id=first_B[index_R], likeliest=LIKELIEST)
        shown = map(self._shown, steps)
        return [[next(shown) for _ in several] for several in found]

    def _shown(self, steps: Sequence[decoding.Step]) -> tuple[Step, ...]:
        return tuple(
            Step(self._token(step.id, step.log_probability), tuple(self._token(*one) for one in step.likeliest))
            for step in steps
        )

    def _token(self, token: int, nats: float) -> Token:
        text = SPECIALS[token] if token < len(SPECIALS) else self.writes.continuation([token])
        return Token(text, token, math.exp(nats))


class Translator(Speaker):
    """Translates: texts past `length` tokens are cut off, as in training, and so are translations."""

    def reading(self, ids: Sequence[int]) -> Reading:
        """The source up to `length` with the end token, then the start token."""
        room = self.length - 1
        notes = remarks(ids, len(ids) - room, f"it was cut off after {room} tokens, the most that the model reads")
        if not ids:
            notes = ("it is empty: there is nothing to translate",)
        return Reading([*ids[:room], EOS], BOS, max(0, len(ids) - room), notes)

    def reference(self, text: str, given: str) -> tuple[Reading, list[int]]:
        """The translation with its end token."""
        ids = [*self.writes.encode(given), EOS]
        if len(ids) > self.length:
            raise InputError(
                f"reference {given[:40]!r}: its {len(ids)} tokens, the end counted, are more than the {self.length} "
                "that the model writes; shorten it"
            )
        return self.reading(self.reads.encode(text)), ids

    def max_length(self, max_new_tokens: int | None) -> int:
        """No more than `length`."""
        return self.length if max_new_tokens is None else min(self.length, max_new_tokens + 1)

    def spelled(self, ids: Sequence[int], after: Reading) -> str:
        """A whole text."""
        return self.writes.decode(ids)


class Continuer(Speaker):
    """Goes on with texts, past the window of `length` tokens, too; of a longer text it reads the end."""

    banned_ids = (PAD, BOS, UNK)

    def __init__(self, network: nn.Module, tokenizers: Mapping[str, TextTokenizer], length: int) -> None:
        super().__init__(network, tokenizers, length)
        self.network = Restarting(cast("WindowedStepper[Any]", network))

    def reading(self, ids: Sequence[int]) -> Reading:
        """The end of the text, after the start token where that has room; its last token is that of the first step."""
        cut = max(0, len(ids) - self.length)
        window = f"only its last {self.length} tokens were read, the most that the model reads"
        *source, first = [BOS, *ids][-self.length :]
        return Reading(source, first, cut, remarks(ids, cut, window))

    def reference(self, text: str, given: str) -> tuple[Reading, list[int]]:
        """What follows in the tokens of text and reference together; no end token, for the text may go on."""
        ids = self.reads.encode(text + given)
        alike = zip(ids, self.reads.encode(text), strict=False)
        kept = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], alike))
        return self.reading(ids[:kept]), ids[kept:]

    def max_length(self, max_new_tokens: int | None) -> int:
        """As many as are wanted, whatever the window."""
        return (max_new_tokens or CONTINUATION_TOKENS) + 1

    def spelled(self, ids: Sequence[int], after: Reading) -> str:
        """The continuation alone, with the blank before its first word."""
        return self.writes.decode(ids) if after.first == BOS else self.writes.continuation(ids)

    def _alike(self, readings: Sequence[Reading]) -> list[list[int]]:
        """Rows of one length each: a prompt is not padded."""
        rows: dict[int, list[int]] = {}
        for row, reading in enumerate(readings):
            rows.setdefault(len(reading.source), []).append(row)
        return list(rows.values())


def device(network: nn.Module) -> torch.device:
    """Where a network lies."""
    held = itertools.chain(network.parameters(), network.buffers())
    return next((tensor.device for tensor in held), torch.device("cpu"))


def remarks(ids: Sequence[int], cut: int, sentence: str) -> tuple[str, ...]:
    """What is amiss with a text: the sentence, where some of it was cut, and that nothing of it is known."""
    notes = [sentence] if cut > 0 else []
    if ids and all(token == UNK for token in ids):
        notes.append("none of its tokens is known to the model: what it says has nothing to do with it")
    return tuple(notes)
