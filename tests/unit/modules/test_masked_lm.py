"""Masks: how many, of what kind, never over special tokens; and the loss over what is behind them alone."""

from __future__ import annotations

import math

import pytest
import torch
from mean_loss import mean_loss
from torch import Tensor, nn
from torch.nn import functional as F

from tuneyard_modules.masked_lm import Draws, MaskedBatch, MaskedLanguageModule, MaskedSettings, mask_words
from tuneyard_modules.objective import Optimization

SETTINGS = MaskedSettings(mask_id=50)


def words(*shape: int) -> Tensor:
    return torch.randint(4, 50, shape, generator=torch.Generator().manual_seed(0))


def masked(text: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    return mask_words(text, SETTINGS, Draws.of(text.shape, SETTINGS, torch.Generator().manual_seed(seed)))


def test_fifteen_in_a_hundred_are_hidden_most_of_them_behind_the_mask() -> None:
    text = words(400, 500)
    shown, target = masked(text, 1)
    hidden = target != 0
    assert hidden.float().mean().item() == pytest.approx(0.15, abs=0.003)
    assert torch.equal(target[hidden], text[hidden])
    assert torch.equal(shown[~hidden], text[~hidden])
    as_mask, as_is = (shown == 50)[hidden].float().mean().item(), (shown == text)[hidden].float().mean().item()
    assert as_mask == pytest.approx(0.8, abs=0.01)
    assert as_is == pytest.approx(0.1 + 0.1 / 46, abs=0.005), "a tenth, and what is replaced by itself"
    assert int(shown[shown != 50].max()) < 50
    assert int(shown.min()) >= 4


def test_special_tokens_are_never_hidden_and_one_word_always_is() -> None:
    text = torch.tensor([[1, 7, 2, 0, 0], [3, 2, 2, 0, 0]])
    for seed in range(50):
        shown, target = masked(text, seed)
        assert target.tolist() == [[0, 7, 0, 0, 0], [0] * 5]
        assert torch.equal(shown.masked_fill(target == 7, 7), text)


def test_a_seed_hides_the_same_words_again() -> None:
    one, again, other = (masked(words(9, 9), seed) for seed in (5, 5, 6))
    assert torch.equal(one[0], again[0])
    assert not torch.equal(one[0], other[0])


class Table(nn.Module):
    """Logits that follow from the token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(51, 51, generator=torch.Generator().manual_seed(2)))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.table[tokens_BT]


def module() -> MaskedLanguageModule:
    return MaskedLanguageModule(Table(), Optimization(learning_rate=0.1), SETTINGS)


def test_the_loss_is_the_mean_over_what_is_hidden() -> None:
    text_BT = words(4, 30)
    trained = module()
    shown, target = masked(text_BT, 3)
    hidden = target != 0
    expected = F.cross_entropy(trained.network(shown)[hidden], target[hidden])
    torch.testing.assert_close(mean_loss(trained, MaskedBatch(shown, target, tokens=120)), expected)


def test_a_batch_without_a_word_costs_nothing_and_has_a_gradient() -> None:
    trained = module()
    nothing_BT = torch.full((2, 3), 2)
    loss = mean_loss(trained, MaskedBatch(*masked(nothing_BT, 1), tokens=6))
    loss.backward()
    assert loss.item() == 0.0
    assert not trained.network.table.grad.any()


def test_validation_counts_each_hidden_word_once() -> None:
    validated = module().eval()
    shown, target = masked(words(6, 20), 4)
    for rows in (slice(0, 1), slice(1, 6)):
        validated.validation_step(MaskedBatch(shown[rows], target[rows], tokens=1), 0)
    hidden = target != 0
    loss = F.cross_entropy(validated.network(shown)[hidden], target[hidden]).item()
    scores = validated._likelihood.scores()
    assert validated._likelihood.tokens == int(hidden.sum())
    assert scores["loss"] == pytest.approx(loss)
    assert scores["perplexity"] == pytest.approx(math.exp(loss))
