"""Masks in texts as people write them, and what a model tells behind them: `[MASK]` stands for one token.

T tokens of a text, K masks in it, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby

import torch
from torch import Tensor, nn

from tuneyard_modules.decoding import Decoding
from tuneyard_pipelines.answers import LIKELIEST, Answer, Candidate, Step, Token, device, remarks
from tuneyard_pipelines.catalog import MASK
from tuneyard_pipelines.data import EOS, UNK, TextTokenizer
from tuneyard_pipelines.errors import InputError


def read(tokenizer: TextTokenizer, text: str, mask_id: int) -> list[int]:
    """The tokens of a text, `mask_id` for each mask in it. What stands between two masks is cut on its own."""
    first, *others = text.split(MASK)
    ids = tokenizer.encode(first)
    for part in others:
        ids += [mask_id, *tokenizer.encode(part)]
    return ids


def written(tokenizer: TextTokenizer, ids: Sequence[int], mask_id: int) -> str:
    """The text of tokens, with its masks."""
    parts = [
        MASK * len(run) if masked else tokenizer.continuation(run)
        for masked, run in ((masked, list(run)) for masked, run in groupby(ids, key=lambda token: token == mask_id))
    ]
    return "".join(parts)


class Filler:
    """Tells the tokens behind the masks of texts, each for itself; `length` is the most tokens that the network reads.

    The end token follows a text where there is room for it, as in training.
    """

    def __init__(self, network: nn.Module, tokenizer: TextTokenizer, length: int) -> None:
        self.network, self.tokenizer, self.length = network, tokenizer, length
        self.mask_id = tokenizer.vocab_size

    def answers(self, texts: Sequence[str], how: Decoding, *, steps: bool = False) -> list[Answer]:
        """Each text with its masks filled, by the likeliest tokens first; a step is a mask.

        The score of a candidate is the mean log-probability of its tokens in nats, those of different masks
        independent. A text without a mask, or with more tokens than the network reads, stays as it is, and a note says
        why. Raises InputError for settings other than beam and n_best.
        """
        plain = Decoding(beam=how.beam, n_best=how.n_best)
        if other := [one.name for one in fields(how) if getattr(how, one.name) != getattr(plain, one.name)]:
            raise InputError(
                f"{', '.join(other)}: a mask is filled by its likeliest tokens; only beam and n_best can be chosen"
            )
        return [self._answer(text, how.n_best, steps=steps) for text in texts]

    def scores(self, texts: Sequence[str], references: Sequence[str]) -> list[Candidate]:
        """Raises InputError: a model that sees both sides of a token gives a whole text no probability."""
        raise InputError("score: a masked language model has no probability for a text; use predict with steps")

    def _answer(self, text: str, n_best: int, *, steps: bool) -> Answer:
        ids = read(self.tokenizer, text, self.mask_id)
        if self.mask_id not in ids:
            return _unfilled(text, f"it has no {MASK}, which stands for a token to be told: nothing was filled")
        if len(ids) > self.length:
            seen = f"more than the {self.length} that the model sees at once: nothing was filled; shorten it"
            return _unfilled(text, f"it has {len(ids)} tokens, {seen}")
        nats_KV = self._nats(ids)
        # The best of all choices: of the masks so far, and one token more.
        best: list[tuple[float, list[int]]] = [(0.0, [])]
        for nats_V in nats_KV:
            found = nats_V.topk(min(n_best, len(nats_V) - UNK - 1))
            longer = [
                (total + nats, [*told, token])
                for total, told in best
                for nats, token in zip(found.values.tolist(), found.indices.tolist(), strict=True)
            ]
            best = sorted(longer, key=lambda one: -one[0])[:n_best]
        candidates = tuple(
            Candidate(self._filled(ids, told), total / len(told), self._steps(nats_KV, told) if steps else ())
            for total, told in best
        )
        return Answer(text, candidates, 0, remarks([token for token in ids if token != self.mask_id], 0, ""))

    @torch.inference_mode()
    def _nats(self, ids: Sequence[int]) -> Tensor:
        """Log-probabilities behind each mask; special tokens have none."""
        shown = [*ids, EOS][: self.length]
        shown_1T = torch.tensor([shown], device=device(self.network))
        logits_KV = self.network(shown_1T)[shown_1T == self.mask_id].float().cpu()
        logits_KV[:, : UNK + 1] = -torch.inf
        nats_KV: Tensor = logits_KV[:, : self.mask_id].log_softmax(dim=-1)
        return nats_KV

    def _filled(self, ids: Sequence[int], told: Sequence[int]) -> str:
        left = iter(told)
        return self.tokenizer.decode([next(left) if token == self.mask_id else token for token in ids])

    def _steps(self, nats_KV: Tensor, told: Sequence[int]) -> tuple[Step, ...]:
        steps = []
        for nats_V, token in zip(nats_KV, told, strict=True):
            found = nats_V.topk(min(LIKELIEST, len(nats_V) - UNK - 1))
            likeliest = map(self._token, found.indices.tolist(), found.values.tolist())
            steps.append(Step(self._token(token, float(nats_V[token])), tuple(likeliest)))
        return tuple(steps)

    def _token(self, token: int, nats: float) -> Token:
        return Token(self.tokenizer.continuation([token]), token, math.exp(nats))


def _unfilled(text: str, why: str) -> Answer:
    """The text as it was; no token was chosen, so that the sum of their log-probabilities is 0."""
    return Answer(text, (Candidate(text, 0.0),), 0, (why,))
