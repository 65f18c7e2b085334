"""Final scores of one model on the test split, by sacrebleu (Post 2018) and by example.

B batch, S source length, T target length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sacrebleu.metrics import BLEU, CHRF
from torch import Tensor
from torch.nn import functional as F

from tuneyard_modules.decoding import greedy
from tuneyard_modules.transformer import EncoderDecoder
from tuneyard_modules.translation import TranslationBatch, bleu_tokenizer
from tuneyard_pipelines import evidence
from tuneyard_pipelines.data import BOS, EOS, PAD, UNK, EncodedData, PreparedData
from tuneyard_pipelines.data.batching import eval_batches
from tuneyard_pipelines.evidence import Evidence
from tuneyard_pipelines.spec import TrialConfig


@dataclass(frozen=True)
class _Teacher:
    """Per example: summed negative log-likelihood in nats, right next tokens, number of them."""

    nll: list[float]
    correct: list[int]
    tokens: list[int]


def score_test(
    network: EncoderDecoder,
    config: TrialConfig,
    prepared: PreparedData,
    encoded: EncodedData,
    folder: Path,
    alive: Callable[[], None] = lambda: None,
) -> Evidence:
    """Score `network` on the whole test split, greedy decoding, and write the evidence to `folder`.

    Metrics are named test/...: exact_match and accuracy in 0..1, bleu and chrf in 0..100, loss in nats a token.
    Nothing is left out for its length: what `sequence_length` cuts off counts against the model. `alive` is called
    after each batch.
    """
    texts = prepared.split("test")
    references: list[str] = list(texts["target"])
    split = encoded.split("test")
    unknown = [_share(ids, UNK) for ids in split["source_ids"]]
    batches, cut = eval_batches(
        split, sequence_length=config.model.sequence_length, batch_tokens=config.training.batch_tokens
    )
    length = config.model.sequence_length
    hypotheses = [""] * len(references)
    teacher = _Teacher([0.0] * len(references), [0] * len(references), [0] * len(references))
    row = {example: index for index, example in enumerate(texts["id"])}
    network.eval()
    for batch in batches:
        rows = [row[int(example)] for example in batch.ids]
        _teacher_forced(network, batch, rows, teacher)
        source_BS = batch.source_BS.to(_device(network))
        for index, ids in zip(rows, greedy(network, source_BS, bos_id=BOS, eos_id=EOS, max_length=length), strict=True):
            hypotheses[index] = encoded.tokenizer.decode(ids)
        alive()
    bleu, chrf = BLEU(tokenize=bleu_tokenizer(references), smooth_method="none"), CHRF()
    exact = [int(hypothesis == reference) for hypothesis, reference in zip(hypotheses, references, strict=True)]
    metrics = {
        "test/exact_match": sum(exact) / len(exact),
        "test/bleu": float(bleu.corpus_score(hypotheses, [references]).score),
        "test/chrf": float(chrf.corpus_score(hypotheses, [references]).score),
        "test/loss": sum(teacher.nll) / sum(teacher.tokens),
        "test/accuracy": sum(teacher.correct) / sum(teacher.tokens),
    }
    rows_table: dict[str, Sequence[Any]] = {
        "id": texts["id"],
        "length": [len(ids) for ids in split["source_ids"]],
        "unknown": unknown,
        "exact_match": exact,
        "bleu": _statistics(bleu, hypotheses, references),
        "chrf": _statistics(chrf, hypotheses, references),
        "nll": teacher.nll,
        "correct": teacher.correct,
        "target_tokens": teacher.tokens,
        "prediction": hypotheses,
    }
    return evidence.write(
        folder,
        rows_table,
        metrics=metrics,
        cut_off=cut,
        test_fingerprint=prepared.test_fingerprint,
        metric_signature=metric_signature(bleu, chrf),
        decoding={"method": "greedy", "max_length": length},
    )


def metric_signature(bleu: BLEU, chrf: CHRF) -> dict[str, str]:
    """What each test metric means, in sacrebleu's own words where it has some."""
    return {
        "bleu": str(bleu.get_signature()),
        "chrf": str(chrf.get_signature()),
        "exact_match": "the whole text, character by character",
        "loss": "nats a target token, end token included",
        "accuracy": "share of right next tokens under teacher forcing, end token included",
    }


@torch.inference_mode()
def _teacher_forced(network: EncoderDecoder, batch: TranslationBatch, rows: Sequence[int], into: _Teacher) -> None:
    device = _device(network)
    source_BS, target_BT = batch.source_BS.to(device), batch.target_BT.to(device)
    logits_BTV: Tensor = network(source_BS, target_BT[:, :-1])
    next_BT = target_BT[:, 1:]
    real_BT = next_BT != PAD
    nll_BT = F.cross_entropy(logits_BTV.transpose(1, 2), next_BT, reduction="none") * real_BT
    right_BT = (logits_BTV.argmax(-1) == next_BT) & real_BT
    for index, nll, right, tokens in zip(
        rows, nll_BT.sum(1).tolist(), right_BT.sum(1).tolist(), real_BT.sum(1).tolist(), strict=True
    ):
        into.nll[index], into.correct[index], into.tokens[index] = nll, right, tokens


def _statistics(metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> list[list[int]]:
    """Sufficient statistics by example: their sum over examples gives the corpus score."""
    return [[int(value) for value in row] for row in metric._extract_corpus_statistics(hypotheses, [references])]


def _share(ids: Sequence[int], token: int) -> float:
    return list(ids).count(token) / len(ids) if len(ids) else 0.0


def _device(network: EncoderDecoder) -> torch.device:
    return next(network.parameters()).device
