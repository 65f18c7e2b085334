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

from tuneyard_modules.baselines import CountingNetwork
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
    `extra_bits` what the caller charges for characters that the tokenizer has no token for. Raises ValueError where
    there is no text.
    """

    def __init__(
        self,
        network: nn.Module,
        optimization: Optimization,
        settings: LanguageSettings,
        *,
        text_bytes: int,
        extra_bits: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if text_bytes < 1:
            raise ValueError(f"text_bytes={text_bytes} must be at least 1: give the validation split some text")
        super().__init__(optimization, clock=clock)
        self.network = network
        self.settings = settings
        self._text_bytes = text_bytes
        self._extra_bits = extra_bits
        self._likelihood = Likelihood()

    def summed_loss(self, batch: LanguageBatch) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the next token, and the tokens that count."""
        logits_BTV = self.network(batch.tokens_BT)
        settings = self.settings
        return next_token_loss(
            logits_BTV, batch.next_BT, pad_id=settings.pad_id, label_smoothing=settings.label_smoothing
        )

    def on_validation_epoch_start(self) -> None:
        """Begin a new count."""
        self._likelihood = Likelihood()

    def validation_step(self, batch: LanguageBatch, batch_idx: int) -> None:
        """Count what the model finds likely."""
        self._likelihood.add(next_token_scores(self.network(batch.tokens_BT), batch.next_BT, self.settings.pad_id))

    def on_validation_epoch_end(self) -> None:
        """Log the scores at the number of steps done; what cannot be computed is NaN."""
        likelihood = self._likelihood.of_all_workers()
        scores = {
            **likelihood.scores(),
            "bits_per_byte": bits_per_byte(likelihood, self._text_bytes, self._extra_bits),
        }
        self.log_validation(scores)


class CountingModule(LanguageModelingModule):
    """Lets a network count instead of learn; what it finds likely is validated as of any other.

    It counts the first `pass_tokens` tokens, those of the first pass over the text: to count a text twice would not be
    to know more of it.
    """

    network: CountingNetwork

    def __init__(self, network: CountingNetwork, *arguments: Any, pass_tokens: int, **options: Any) -> None:
        super().__init__(network, *arguments, **options)
        self._pass_tokens = pass_tokens
        self._no_weight = torch.zeros((), requires_grad=True)

    def training_step(self, batch: LanguageBatch, batch_idx: int) -> Tensor:
        """Count the batch; the loss depends on no weight."""
        if self.tokens_trained < self._pass_tokens:
            self.network.count(batch.tokens_BT, batch.next_BT)
        return self._no_weight * 0.0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One that has nothing to move: Lightning counts its steps."""
        return torch.optim.SGD([self._no_weight], lr=0.0)

    def configure_gradient_clipping(self, *arguments: Any, **options: Any) -> None:
        """Nothing: counting has no gradient."""


def bits_per_byte(likelihood: Likelihood, text_bytes: int, extra_bits: float = 0.0) -> float:
    """(nats / ln 2 + extra bits) / UTF-8 bytes, section 3.1 of Gao et al. 2020 (The Pile); NaN where nothing was seen.

    It compares models whatever their tokenizer and window, as long as each was charged for the same text, all of it:
    every token once, an end token after each document, and `extra_bits` for what its tokenizer cannot spell.
    """
    return (likelihood.nll / math.log(2.0) + extra_bits) / text_bytes if likelihood.tokens else math.nan
