"""Masked language modelling: the words behind masks from those on both sides of them, Devlin et al. 2019.

B batch, T window length, V vocabulary, the mask included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tuneyard_modules.likelihood import Likelihood, next_token_loss, next_token_scores
from tuneyard_modules.objective import Optimization, SequenceModule

MASKED_SHARE = 0.15
_SHOWN_AS_MASK, _SHOWN_AS_ANOTHER = 0.8, 0.1  # of what is masked; the rest is shown as it is


class MaskedBatch(NamedTuple):
    """Windows of a text with masks in it, padded at the right.

    `target_BT` (int64) holds the tokens behind the masks, `pad_id` elsewhere. `tokens` counts the unpadded tokens,
    those of the other workers' parts with them; `share` is the used share of the training budget before this batch.
    """

    shown_BT: Tensor
    target_BT: Tensor
    tokens: int
    share: float = 0.0


@dataclass(frozen=True)
class MaskedSettings:
    """`mask_id` is the last id of the network; those from `first_word_id` on and below it are words."""

    mask_id: int
    label_smoothing: float = 0.0
    pad_id: int = 0
    first_word_id: int = 4


class MaskedLanguageModule(SequenceModule):
    """Trains `network`, which maps windows with masks to the logits of the word at each place."""

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

    def summed_loss(self, batch: MaskedBatch) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the words behind the masks, and how many there are."""
        settings = self.settings
        return next_token_loss(
            self.network(batch.shown_BT),
            batch.target_BT,
            pad_id=settings.pad_id,
            label_smoothing=settings.label_smoothing,
        )

    def on_validation_epoch_start(self) -> None:
        """Begin a new count."""
        self._likelihood = Likelihood()

    def validation_step(self, batch: MaskedBatch, batch_idx: int) -> None:
        """Count what the model finds likely."""
        self._likelihood.add(next_token_scores(self.network(batch.shown_BT), batch.target_BT, self.settings.pad_id))

    def on_validation_epoch_end(self) -> None:
        """Log the scores at the number of steps done; what cannot be computed is NaN."""
        self.log_validation(self._likelihood.of_all_workers().scores())


class Draws(NamedTuple):
    """What chance says of every place of a text: which are hidden, and how. All of the text's shape.

    `place` and `kind` are uniform in 0..1, `another` is any word.
    """

    place: Tensor
    kind: Tensor
    another: Tensor

    @classmethod
    def of(cls, shape: Sequence[int], settings: MaskedSettings, generator: torch.Generator) -> Draws:
        place, kind = (torch.rand(*shape, generator=generator) for _ in range(2))
        another = torch.randint(settings.first_word_id, settings.mask_id, tuple(shape), generator=generator)
        return cls(place, kind, another)


def mask_words(text: Tensor, settings: MaskedSettings, draws: Draws) -> tuple[Tensor, Tensor]:
    """Hide 15 % of the words: section 3.1 of Devlin et al. 2019.

    Of those 80 % are shown as the mask, 10 % as any word, 10 % as they are. Returns what is shown and the words to be
    told, `pad_id` at all other places, both of the shape of `text`. Special tokens are never hidden; at least one word
    is, where there is one.
    """
    word = text >= settings.first_word_id
    place = draws.place.masked_fill(~word, 1.0)
    hidden = word & ((place < MASKED_SHARE) | (place == place.min()))
    shown = torch.where(hidden & (draws.kind < _SHOWN_AS_MASK), settings.mask_id, text)
    replaced = hidden & (draws.kind >= _SHOWN_AS_MASK) & (draws.kind < _SHOWN_AS_MASK + _SHOWN_AS_ANOTHER)
    return torch.where(replaced, draws.another, shown), torch.where(hidden, text, settings.pad_id)
