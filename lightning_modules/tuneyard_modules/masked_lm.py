"""Masked language modelling: the words behind masks from those on both sides of them, Devlin et al. 2019.

B batch, T window length, V vocabulary, the mask included.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tuneyard_modules.language_modeling import LanguageBatch
from tuneyard_modules.likelihood import Likelihood, next_token_loss, next_token_scores
from tuneyard_modules.objective import Optimization, SequenceModule

MASKED_SHARE = 0.15
_SHOWN_AS_MASK, _SHOWN_AS_ANOTHER = 0.8, 0.1  # of what is masked; the rest is shown as it is


class MaskedBatch(NamedTuple):
    """Windows of a text with masks in it, padded at the right.

    `target_BT` (int64) holds the tokens behind the masks, `pad_id` elsewhere. `tokens` counts the unpadded tokens.
    """

    shown_BT: Tensor
    target_BT: Tensor
    tokens: int


@dataclass(frozen=True)
class MaskedSettings:
    """`mask_id` is the last id of the network; those from `first_word_id` on and below it are words."""

    mask_id: int
    label_smoothing: float = 0.0
    pad_id: int = 0
    first_word_id: int = 4


class MaskedLanguageModule(SequenceModule):
    """Trains `network`, which maps windows with masks to the logits of the word at each place.

    Masks are drawn anew for every training batch, by torch's global generator; a `LanguageBatch` gives the window as
    its `next_BT`. Validation batches bring theirs, so that every trial is asked for the same words.
    """

    def __init__(
        self,
        network: nn.Module,
        optimization: Optimization,
        settings: MaskedSettings,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(optimization, clock=clock)
        self.network = network
        self.settings = settings
        self._likelihood = Likelihood()
        self._hidden = torch.zeros(())

    def loss(self, batch: LanguageBatch) -> Tensor:
        """Cross-entropy of the words behind the masks, mean over them; 0 for a batch without a word."""
        settings = self.settings
        shown_BT, target_BT = mask_words(batch.next_BT, settings)
        self._hidden = (target_BT != settings.pad_id).sum()
        logits_BTV = self.network(shown_BT)
        if not self._hidden:
            nothing: Tensor = logits_BTV.sum() * 0.0
            return nothing
        return next_token_loss(logits_BTV, target_BT, pad_id=settings.pad_id, label_smoothing=settings.label_smoothing)

    def targets(self, batch: LanguageBatch) -> Tensor:
        """The words that the last loss hid; one, where there was none."""
        return self._hidden.clamp(min=1)

    def on_validation_epoch_start(self) -> None:
        """Begin a new count."""
        self._likelihood = Likelihood()

    def validation_step(self, batch: MaskedBatch, batch_idx: int) -> None:
        """Count what the model finds likely."""
        self._likelihood.add(next_token_scores(self.network(batch.shown_BT), batch.target_BT, self.settings.pad_id))

    def on_validation_epoch_end(self) -> None:
        """Log the scores at the number of steps done; what cannot be computed is NaN."""
        self.log_validation(self._likelihood.scores())


def mask_words(
    text: Tensor, settings: MaskedSettings, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Hide 15 % of the words: section 3.1 of Devlin et al. 2019.

    Of those 80 % are shown as the mask, 10 % as any word, 10 % as they are. Returns what is shown and the words to be
    told, `pad_id` at all other places, both of the shape of `text`. Special tokens are never hidden; at least one word
    is, where there is one. Draws come from `generator`, by default torch's global one.
    """
    draw, kind = (torch.rand(text.shape, generator=generator).to(text.device) for _ in range(2))
    another = torch.randint(settings.first_word_id, settings.mask_id, text.shape, generator=generator).to(text.device)
    word = text >= settings.first_word_id
    draw = draw.masked_fill(~word, 1.0)
    hidden = word & ((draw < MASKED_SHARE) | (draw == draw.min()))
    shown = torch.where(hidden & (kind < _SHOWN_AS_MASK), settings.mask_id, text)
    replaced = hidden & (kind >= _SHOWN_AS_MASK) & (kind < _SHOWN_AS_MASK + _SHOWN_AS_ANOTHER)
    return torch.where(replaced, another, shown), torch.where(hidden, text, settings.pad_id)
