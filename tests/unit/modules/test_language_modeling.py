"""The language-modelling objective: what it learns, what it scores, and how it logs."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from mean_loss import mean_loss
from torch.nn import functional as F

from tuneyard_modules.language_modeling import (
    LanguageBatch,
    LanguageModelingModule,
    LanguageSettings,
    bits_per_byte,
)
from tuneyard_modules.likelihood import Likelihood
from tuneyard_modules.objective import Loader, Optimization
from tuneyard_modules.transformer import DecoderOnly, TransformerConfig


def _module(text_bytes: int = 20, extra_bits: float = 0.0, **settings: Any) -> LanguageModelingModule:
    torch.manual_seed(0)
    return LanguageModelingModule(
        DecoderOnly(TransformerConfig(14, 32, 4, 2, max_length=8, dropout=0.0, positions="learned")),
        Optimization(learning_rate=0.01, warmup=0.1),
        LanguageSettings(**settings),
        text_bytes=text_bytes,
        extra_bits=extra_bits,
    )


def _batch(seed: int = 0, rows: int = 4, *, share: float = 0.0) -> LanguageBatch:
    """Random windows that begin differently; the first is short, and the last counts only its second half."""
    text = torch.randint(4, 14, (rows, 9), generator=torch.Generator().manual_seed(seed))
    text[:, 0] = torch.arange(4, 4 + rows)
    tokens, following = text[:, :-1].clone(), text[:, 1:].clone()
    tokens[0, 5:], following[0, 5:], following[-1, :4] = 0, 0, 0
    return LanguageBatch(tokens, following, int((following != 0).sum()), share)


def _trainer(**options: Any) -> pl.Trainer:
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    defaults: dict[str, Any] = {"max_epochs": 1, "logger": False}
    return pl.Trainer(
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **(defaults | options),
    )


def test_one_batch_can_be_overfitted() -> None:
    module, trainer = _module(), _trainer()
    trainer.fit(module, Loader(lambda: (_batch(share=step / 150) for step in range(150))), Loader(lambda: [_batch()]))
    scores = {name: value.item() for name, value in trainer.callback_metrics.items()}
    assert scores["val/loss"] < 0.05
    assert scores["val/accuracy"] == 1.0
    assert scores["val/perplexity"] == pytest.approx(math.exp(scores["val/loss"]), rel=1e-5)
    assert module.tokens_trained == 150 * _batch().tokens
    assert scores["step"] == 150.0


def test_labels_are_smoothed_in_training_only() -> None:
    plain, smoothed, batch = _module(), _module(label_smoothing=0.2), _batch()
    logs = plain.network(batch.tokens_BT).log_softmax(-1)
    real = batch.next_BT != 0
    expected = -logs.gather(-1, batch.next_BT[..., None])[..., 0][real].mean().item()
    assert mean_loss(plain, batch).item() == pytest.approx(expected, rel=1e-5)
    uniform = -logs.mean(-1)[real].mean().item()
    assert mean_loss(smoothed, batch).item() == pytest.approx(0.8 * expected + 0.2 * uniform, rel=1e-5)
    assert mean_loss(smoothed, batch).item() != pytest.approx(expected, rel=1e-4)
    (logged,) = _trainer().validate(smoothed, Loader(lambda: [batch]), verbose=False)
    assert logged["val/loss"] == pytest.approx(expected, rel=1e-5)


def test_bits_per_byte_by_hand() -> None:
    """8 tokens at 3 bits each and 6 bits for what has no token, over 15 bytes."""
    likelihood = Likelihood(nll=8 * 3 * math.log(2), tokens=8, correct=1)
    assert bits_per_byte(likelihood, text_bytes=15, extra_bits=6.0) == pytest.approx(2.0, rel=1e-12)
    assert math.isnan(bits_per_byte(Likelihood(), text_bytes=15))


def test_validation_logs_bits_of_all_batches_over_the_bytes_of_the_text() -> None:
    """A uniform model pays log2 V for every token, however they are batched."""
    module = _module(text_bytes=100, extra_bits=12.5)
    module.network = _Uniform(14)
    batches = [_batch(0), _batch(1, rows=3), _batch(2, rows=2)]
    tokens = sum(batch.tokens for batch in batches)
    (logged,) = _trainer().validate(module, Loader(lambda: batches), verbose=False)
    assert set(logged) == {"val/loss", "val/perplexity", "val/accuracy", "val/bits_per_byte", "step"}
    assert logged["val/loss"] == pytest.approx(math.log(14), rel=1e-6)
    assert logged["val/perplexity"] == pytest.approx(14.0, rel=1e-6)
    assert logged["val/accuracy"] == 0.0
    assert logged["val/bits_per_byte"] == pytest.approx((tokens * math.log2(14) + 12.5) / 100, rel=1e-6)


def test_validation_weighs_tokens_not_batches() -> None:
    module, batch = _module(), _batch()
    parts = [LanguageBatch(batch.tokens_BT[rows], batch.next_BT[rows], 0, 0.0) for rows in ([0, 1, 2], [3])]
    (split,) = _trainer().validate(module, Loader(lambda: parts), verbose=False)
    (whole,) = _trainer().validate(module, Loader(lambda: [batch]), verbose=False)
    assert split == pytest.approx(whole, rel=1e-5)


def test_each_validation_counts_anew() -> None:
    module = _module()
    first, second = (_trainer().validate(module, Loader(lambda: [_batch()]), verbose=False) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("poison", [math.nan, 1e6])
def test_a_spoiled_model_still_validates(poison: float) -> None:
    module = _module()
    with torch.no_grad():
        module.network.norm.weight.fill_(poison)  # type: ignore[union-attr, operator]
    (scores,) = _trainer().validate(module, Loader(lambda: [_batch()]), verbose=False)
    assert not any(math.isinf(score) for score in scores.values())
    assert math.isnan(scores["val/perplexity"])


def test_a_text_without_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="text_bytes=0 must be at least 1"):
        _module(text_bytes=0)


def test_a_batch_moves_as_a_whole() -> None:
    batch = _batch(share=0.5)
    moved = _module().transfer_batch_to_device(batch, torch.device("meta"), 0)
    assert (moved.tokens_BT.device.type, moved.next_BT.device.type) == ("meta", "meta")
    assert (moved.tokens, moved.share) == (batch.tokens, 0.5)


class _Uniform(torch.nn.Module):
    """Finds every token alike, the start token a hair better so that it is what it would say."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        return 1e-6 * F.one_hot(torch.ones_like(tokens_BT), self.vocab_size).float()
