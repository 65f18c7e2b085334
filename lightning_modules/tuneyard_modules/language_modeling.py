"""Language modelling: the next token of a text, scored in bits per byte so that tokenizers and windows can be compared.

B batch, T window length, V vocabulary.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tuneyard_modules.baselines import Counting
from tuneyard_modules.likelihood import Likelihood, next_token_loss, next_token_scores
from tuneyard_modules.objective import Optimization, SequenceModule


class LanguageBatch(NamedTuple):
    """Windows of a text, padded at the right.

    `next_BT` (int64) holds the token after each of `tokens_BT` (int64), and `pad_id` where nothing is to be predicted
    or another window counts the token. `tokens` counts the others; `share` is the used share of the training budget
    before this batch.
    """

    tokens_BT: Tensor
    next_BT: Tensor
    tokens: int
    share: float


@dataclass(frozen=True)
class LanguageSettings:
    """`label_smoothing` acts in training only."""

    label_smoothing: float = 0.0
    pad_id: int = 0


class LanguageModelingModule(SequenceModule):
    """Trains `network`, which maps the tokens of a window to the logits of the token after each.

    Validation batches must count every token of the validation text once. `text_bytes` is that whole text in UTF-8,
    `extra_bits` what the caller charges for characters that the tokenizer has no token for. A network that counts
    does so in the first `pass_tokens` tokens only: to count a text twice would not be to know more of it. Raises
    ValueError where there is no text.
    """

    def __init__(
        self,
        network: nn.Module,
        optimization: Optimization,
        settings: LanguageSettings,
        *,
        text_bytes: int,
        extra_bits: float = 0.0,
        pass_tokens: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if text_bytes < 1:
            raise ValueError(f"text_bytes={text_bytes} must be at least 1: give the validation split some text")
        super().__init__(optimization, clock=clock)
        self.network = network
        self.settings = settings
        self._text_bytes = text_bytes
        self._extra_bits = extra_bits
        self._pass_tokens = pass_tokens
        self._likelihood = Likelihood()

    def loss(self, batch: LanguageBatch) -> Tensor:
        """Cross-entropy of the next token, mean over the tokens that count."""
        logits_BTV = self.network(batch.tokens_BT)
        settings = self.settings
        return next_token_loss(
            logits_BTV, batch.next_BT, pad_id=settings.pad_id, label_smoothing=settings.label_smoothing
        )

    def training_step(self, batch: LanguageBatch, batch_idx: int) -> Tensor:
        """The loss; of a network that counts, nothing that depends on a weight."""
        if not isinstance(self.network, Counting):
            return super().training_step(batch, batch_idx)
        if self._pass_tokens is None or self.tokens_trained < self._pass_tokens:
            self.network.count(batch.tokens_BT, batch.next_BT)
        return self._no_weight * 0.0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """As of every objective; for a network that counts one that has nothing to move."""
        if not isinstance(self.network, Counting):
            return super().configure_optimizers()
        self._no_weight = torch.zeros((), requires_grad=True, device=self.device)
        return torch.optim.SGD([self._no_weight], lr=0.0)

    def configure_gradient_clipping(self, *arguments: Any, **options: Any) -> None:
        """As of every objective; counting has no gradient."""
        if not isinstance(self.network, Counting):
            super().configure_gradient_clipping(*arguments, **options)

    def on_validation_epoch_start(self) -> None:
        """Begin a new count."""
        self._likelihood = Likelihood()

    def validation_step(self, batch: LanguageBatch, batch_idx: int) -> None:
        """Count what the model finds likely."""
        self._likelihood.add(next_token_scores(self.network(batch.tokens_BT), batch.next_BT, self.settings.pad_id))

    def on_validation_epoch_end(self) -> None:
        """Log the scores at the number of steps done; what cannot be computed is NaN."""
        likelihood = self._likelihood
        scores = {
            **likelihood.scores(),
            "bits_per_byte": bits_per_byte(likelihood, self._text_bytes, self._extra_bits),
        }
        self.log_validation(scores)


def bits_per_byte(likelihood: Likelihood, text_bytes: int, extra_bits: float = 0.0) -> float:
    """(nats / ln 2 + extra bits) / UTF-8 bytes, section 3.1 of Gao et al. 2020 (The Pile); NaN where nothing was seen.

    It compares models whatever their tokenizer and window, as long as each was charged for the same text, all of it:
    every token once, an end token after each document, and `extra_bits` for what its tokenizer cannot spell.
    """
    return (likelihood.nll / math.log(2.0) + extra_bits) / text_bytes if likelihood.tokens else math.nan
