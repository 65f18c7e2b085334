"""Next-token scores: against torch, against torchmetrics, and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.text import Perplexity

from tuneyard_modules.likelihood import Likelihood, next_token_loss, next_token_scores


def _case(seed: int, rows: int = 3, length: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, length, 7, generator=generator)
    following = torch.randint(1, 7, (rows, length), generator=generator)
    following[0, 3:], following[1, :2] = 0, 0
    return logits, following


def test_every_token_is_scored_and_padding_is_not() -> None:
    logits, following = _case(0)
    nll, correct, counted = next_token_scores(logits, following, pad_id=0)
    expected = -logits.log_softmax(-1).gather(-1, following[..., None])[..., 0].double()
    assert nll.dtype == torch.float64
    assert_close(nll[following != 0], expected[following != 0], rtol=1e-6, atol=1e-6)
    assert (nll[following == 0] == 0).all()
    assert torch.equal(counted, following != 0)
    assert torch.equal(correct, (logits.argmax(-1) == following) & (following != 0))


def test_a_guessed_padding_token_is_not_right() -> None:
    following = torch.tensor([[3, 0]])
    scores = next_token_scores(F.one_hot(following, 7).float(), following, pad_id=0)
    nll, correct, tokens = scores.per_row()
    assert (correct.tolist(), tokens.tolist()) == ([1], [1])
    assert nll.item() == pytest.approx(math.log(math.e + 6) - 1)


def test_rows_sum_up_alone() -> None:
    logits, following = _case(1)
    nll, correct, tokens = next_token_scores(logits, following, pad_id=0).per_row()
    assert tokens.tolist() == [3, 3, 5]
    for row in range(3):
        alone = next_token_scores(logits[row : row + 1], following[row : row + 1], pad_id=0).per_row()
        assert [part.item() for part in alone] == [nll[row].item(), correct[row].item(), tokens[row].item()]


def test_sums_agree_with_torchmetrics() -> None:
    likelihood, perplexity = Likelihood(), Perplexity(ignore_index=0)
    accuracy = MulticlassAccuracy(7, average="micro", ignore_index=0)
    for seed, rows in ((0, 3), (1, 2), (2, 5)):
        logits, following = _case(seed, rows)
        likelihood.add(next_token_scores(logits, following, pad_id=0))
        perplexity.update(logits, following)
        accuracy.update(logits.flatten(0, 1), following.flatten())
    scores = likelihood.scores()
    assert scores["perplexity"] == pytest.approx(perplexity.compute().item(), rel=1e-5)
    assert scores["loss"] == pytest.approx(math.log(perplexity.compute().item()), rel=1e-5)
    assert scores["accuracy"] == pytest.approx(accuracy.compute().item(), rel=1e-5)
    assert 0 < scores["accuracy"] < 1


def test_what_cannot_be_computed_is_nan() -> None:
    assert all(math.isnan(score) for score in Likelihood().scores().values())
    assert math.isnan(Likelihood(nll=1e6, tokens=1).scores()["perplexity"])


def test_the_loss_is_the_mean_over_counted_tokens_and_can_be_smoothed() -> None:
    logits, following = _case(3)
    logs, real = logits.log_softmax(-1), following != 0
    plain = -logs.gather(-1, following[..., None])[..., 0][real].mean()
    assert_close(_mean(next_token_loss(logits, following, pad_id=0)), plain)
    smoothed = 0.8 * plain - 0.2 * logs.mean(-1)[real].mean()
    assert_close(_mean(next_token_loss(logits, following, pad_id=0, label_smoothing=0.2)), smoothed)


def test_without_a_token_the_loss_is_nothing_and_so_is_its_gradient() -> None:
    logits, following = _case(3)
    logits.requires_grad_()
    summed, tokens = next_token_loss(logits, torch.zeros_like(following), pad_id=0, label_smoothing=0.2)
    summed.backward()
    assert (summed.item(), tokens.item()) == (0.0, 0)
    assert logits.grad is not None
    assert not logits.grad.any()


def _mean(loss: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    summed, tokens = loss
    return summed / tokens
