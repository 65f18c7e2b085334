"""Translation: teacher forcing in training, and free greedy decoding to score what a user would get in validation.

B batch, S source length, T target length, V vocabulary. Every target begins with the start token and ends with the end
token; both sides are padded at the right.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import sacrebleu
from torch import Tensor, nn
from torchmetrics.functional.text import sacre_bleu_score

from tuneyard_modules import workers
from tuneyard_modules.decoding import greedy
from tuneyard_modules.likelihood import Likelihood, next_token_loss, next_token_scores
from tuneyard_modules.objective import Optimization, SequenceModule


class TranslationBatch(NamedTuple):
    """Pairs of one batch.

    `source_BS` (int64) ends with the end token, `target_BT` (int64) begins with the start token and ends with the end
    token. `tokens` counts both sides without padding and start tokens; `share` is the used share of the training
    budget before this batch.
    """

    ids: list[int]
    source_BS: Tensor
    target_BT: Tensor
    tokens: int
    share: float


@dataclass(frozen=True)
class TranslationSettings:
    """`max_length` counts the tokens of a translation with its end token; `label_smoothing` acts in training only."""

    max_length: int
    label_smoothing: float = 0.0
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2


class TranslationModule(SequenceModule):
    """Trains `network`, which maps sources and target beginnings to logits and can start and step.

    `decode` turns ids into text; `references[id]` is the whole text that example `id` of the validation split should
    become. A reference that was cut off for length is thus never matched by what the model can say.
    """

    def __init__(
        self,
        network: nn.Module,
        optimization: Optimization,
        settings: TranslationSettings,
        *,
        decode: Callable[[Sequence[int]], str],
        references: Mapping[int, str],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(optimization, clock=clock)
        self.network = network
        self.settings = settings
        self._decode = decode
        self._references = references
        self._tokenizer = bleu_tokenizer(references.values())
        self._tally = _Tally()

    def summed_loss(self, batch: TranslationBatch) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the next token, and the tokens of the target side."""
        logits_BTV = self.network(batch.source_BS, batch.target_BT[:, :-1])
        settings = self.settings
        return next_token_loss(
            logits_BTV, batch.target_BT[:, 1:], pad_id=settings.pad_id, label_smoothing=settings.label_smoothing
        )

    def translate(self, source_BS: Tensor) -> list[str]:
        """The greedy translations of a batch of sources; the module must be in evaluation mode."""
        settings = self.settings
        rows = greedy(
            self.network,  # type: ignore[arg-type]
            source_BS,
            bos_id=settings.bos_id,
            eos_id=settings.eos_id,
            max_length=settings.max_length,
        )
        return [self._decode(ids) for ids in rows]

    def on_validation_epoch_start(self) -> None:
        """Begin a new count."""
        self._tally = _Tally()

    def validation_step(self, batch: TranslationBatch, batch_idx: int) -> None:
        """Count what the model finds likely, and keep what it says."""
        logits_BTV = self.network(batch.source_BS, batch.target_BT[:, :-1])
        self._tally.likelihood.add(next_token_scores(logits_BTV, batch.target_BT[:, 1:], self.settings.pad_id))
        self._tally.predictions += self.translate(batch.source_BS)
        self._tally.references += [self._references[index] for index in batch.ids]

    def on_validation_epoch_end(self) -> None:
        """Log the scores at the number of steps done; what cannot be computed is NaN."""
        texts = workers.told((self._tally.predictions, self._tally.references))
        predictions, references = (list(itertools.chain(*parts)) for parts in zip(*texts, strict=True))
        scores = {
            **self._tally.likelihood.of_all_workers().scores(),
            **text_scores(predictions, references, tokenizer=self._tokenizer),
        }
        self._tally = _Tally()
        self.log_validation(scores)


BleuTokenizer = Literal["13a", "zh"]


def bleu_tokenizer(references: Iterable[str]) -> BleuTokenizer:
    """sacrebleu's tokenizer for these texts: "zh" where most letters are Chinese characters, otherwise "13a"."""
    letters = [letter for text in references for letter in text if letter.isalpha()]
    return "zh" if 2 * sum(map(_is_chinese, letters)) > len(letters) else "13a"


def text_scores(predictions: Sequence[str], references: Sequence[str], *, tokenizer: BleuTokenizer) -> dict[str, float]:
    """Share of exact matches (0 to 1), corpus BLEU (Papineni et al. 2002) and chrF (Popovic 2015), both 0 to 100.

    BLEU is not smoothed: without a single matching 4-gram it is 0. chrF is sacrebleu's, because the same number from
    torchmetrics takes thirty times as long. All are NaN without texts.
    """
    if not references:
        return {"exact_match": math.nan, "bleu": math.nan, "chrf": math.nan}
    matches = sum(said == meant for said, meant in zip(predictions, references, strict=True))
    bleu = sacre_bleu_score(predictions, [[reference] for reference in references], tokenize=tokenizer)
    return {
        "exact_match": matches / len(references),
        "bleu": 100.0 * float(bleu),
        "chrf": sacrebleu.corpus_chrf(predictions, [references]).score,
    }


@dataclass
class _Tally:
    """What a validation epoch has seen so far."""

    likelihood: Likelihood = field(default_factory=Likelihood)
    predictions: list[str] = field(default_factory=list)
    references: list[str] = field(default_factory=list)


def _is_chinese(letter: str) -> bool:
    return "\u3400" <= letter <= "\u9fff" or "\uf900" <= letter <= "\ufaff" or "\U00020000" <= letter <= "\U0003ffff"
