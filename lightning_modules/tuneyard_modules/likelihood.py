"""How likely a model finds the tokens that really follow: the loss in training, and exact sums for every score.

B batch, T target length, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from tuneyard_modules import workers


def next_token_loss(
    logits_BTV: Tensor, next_BT: Tensor, *, pad_id: int, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Cross-entropy in nats, summed over the tokens of `next_BT` but `pad_id`, and their number.

    Smoothed as in Szegedy et al. 2016. Without a token the sum is 0, and so is its gradient.
    """
    summed = F.cross_entropy(
        logits_BTV.flatten(0, 1),
        next_BT.flatten(),
        ignore_index=pad_id,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
    return summed, (next_BT != pad_id).sum()


class NextTokenScores(NamedTuple):
    """Token by token, 0 and false where nothing is counted: nats (float64), whether the likeliest was right."""

    nll_BT: Tensor
    correct_BT: Tensor
    counted_BT: Tensor

    def per_row(self) -> tuple[Tensor, Tensor, Tensor]:
        """Summed nats (float64), right tokens and counted tokens (int64) of every row: three tensors of shape B."""
        return self.nll_BT.sum(1), self.correct_BT.sum(1), self.counted_BT.sum(1)


@torch.inference_mode()
def next_token_scores(logits_BTV: Tensor, next_BT: Tensor, pad_id: int) -> NextTokenScores:
    """What `logits_BTV` make of the tokens of `next_BT` but `pad_id`, without any smoothing."""
    counted_BT = next_BT != pad_id
    nll = F.cross_entropy(logits_BTV.flatten(0, 1), next_BT.flatten(), ignore_index=pad_id, reduction="none")
    correct_BT = (logits_BTV.argmax(dim=-1) == next_BT) & counted_BT
    return NextTokenScores(nll.view(next_BT.shape).double(), correct_BT, counted_BT)


@dataclass
class Likelihood:
    """Sums over any number of batches, so that tokens weigh alike however they are batched; NaN where none was seen."""

    nll: float = 0.0
    tokens: int = 0
    correct: int = 0

    def add(self, scores: NextTokenScores) -> None:
        """Count a batch; one transfer from the device."""
        sums = torch.stack([part_B.sum().double() for part_B in scores.per_row()])
        nll, correct, tokens = sums.tolist()
        self.nll, self.correct, self.tokens = self.nll + nll, self.correct + int(correct), self.tokens + int(tokens)

    def of_all_workers(self) -> Likelihood:
        """What all workers have counted together, on each of them the same."""
        parts = workers.told((self.nll, self.tokens, self.correct))
        return Likelihood(*map(sum, zip(*parts, strict=True)))

    def scores(self) -> dict[str, float]:
        """`loss` in nats a token, `perplexity` = e^loss (NaN where it is too large for a float), `accuracy` in 0..1."""
        loss = self.nll / self.tokens if self.tokens else math.nan
        accuracy = self.correct / self.tokens if self.tokens else math.nan
        return {"loss": loss, "perplexity": perplexity(loss), "accuracy": accuracy}


def perplexity(loss: float) -> float:
    """e^loss of a mean loss in nats a token; NaN where it is too large for a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.nan
