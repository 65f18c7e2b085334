"""Final scores of one model on the test split, example by example: by sacrebleu (Post 2018), and in bits per byte.

B batch, S source length, T target or window length, N tokens of the split, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from sacrebleu.metrics import BLEU, CHRF
from torch import nn

from tuneyard_modules.decoding import Stepper, greedy
from tuneyard_modules.likelihood import next_token_scores, perplexity
from tuneyard_modules.masked_lm import MASKED_SHARE
from tuneyard_modules.translation import TranslationBatch, bleu_tokenizer
from tuneyard_pipelines import evidence
from tuneyard_pipelines.answers import device
from tuneyard_pipelines.data import BOS, EOS, PAD, UNK, EncodedData, PreparedData
from tuneyard_pipelines.data.batching import eval_batches
from tuneyard_pipelines.data.windows import evaluation_windows, masked_windows, per_document, unknown_bits
from tuneyard_pipelines.evidence import Evidence
from tuneyard_pipelines.objectives import masked_settings
from tuneyard_pipelines.spec import TrialConfig

Alive = Callable[[], None]


def score_test(
    network: nn.Module,
    config: TrialConfig,
    prepared: PreparedData,
    encoded: EncodedData,
    folder: Path,
    model: str = "",
    alive: Alive = lambda: None,
) -> Evidence:
    """Score `network` on the whole test split and write the evidence to `folder`.

    `model` is the digest of what is scored; `alive` is called after each batch.

    Metrics are named test/...: accuracy in 0..1, loss in nats a token, perplexity; of translation exact_match in 0..1,
    bleu and chrf in 0..100 and, of Chinese, bleu_char, too; of language modeling bits_per_byte. Nothing is left out for
    its length: what `sequence_length` cuts off counts against the model.
    """
    network.eval()
    score = {"translation": _score_translation, "language_modeling": _score_language, "masked_lm": _score_masked}
    scored = score[config.task](network, config, prepared, encoded, alive)
    return evidence.write(
        folder,
        scored.rows,
        metrics={f"test/{name}": value for name, value in scored.metrics.items()},
        cut_off=scored.cut_off,
        test_fingerprint=prepared.test_fingerprint,
        model=model,
        metric_signature=scored.signature,
        decoding=scored.decoding,
    )


@dataclass(frozen=True)
class _Scored:
    """What a task's scoring found: a row an example, scores of them all, what each means, and how texts were read.

    `cut_off` counts examples of which a part was not read.
    """

    rows: Mapping[str, Sequence[Any]]
    metrics: Mapping[str, float]
    signature: Mapping[str, str]
    decoding: Mapping[str, Any]
    cut_off: int = 0


def _score_language(
    network: nn.Module, config: TrialConfig, prepared: PreparedData, encoded: EncodedData, alive: Alive
) -> _Scored:
    """Sliding windows as on validation: every token once, the end of each document included."""
    texts, split = prepared.split("test"), encoded.split("test")
    length = config.model.sequence_length
    batches = evaluation_windows(split, sequence_length=length, batch_tokens=config.training.batch_tokens)
    nll, correct = [], []
    place = device(network)
    for batch in batches:
        with torch.inference_mode():
            scores = next_token_scores(network(batch.tokens_BT.to(place)), batch.next_BT.to(place), PAD)
        nll.append(scores.nll_BT[scores.counted_BT].cpu().numpy())
        correct.append(scores.correct_BT[scores.counted_BT].double().cpu().numpy())
        alive()
    nll_N, correct_N = np.concatenate(nll), np.concatenate(correct)
    text_bytes = [len(text.encode()) for text in texts["text"]]
    loss = float(nll_N.mean())
    extra_bits = unknown_bits(encoded.counts["test"]["text"].unknown_characters)
    metrics = {
        "bits_per_byte": (float(nll_N.sum()) / math.log(2.0) + extra_bits) / sum(text_bytes),
        "loss": loss,
        "perplexity": perplexity(loss),
        "accuracy": float(correct_N.mean()),
    }
    rows: dict[str, Sequence[Any]] = {
        "id": texts["id"],
        "length": split["text"].lengths.tolist(),
        "unknown": split["text"].shares_of(UNK).tolist(),
        "nll": per_document(split, nll_N).tolist(),
        "correct": per_document(split, correct_N).astype(np.int64).tolist(),
        "target_tokens": per_document(split, np.ones_like(nll_N)).astype(np.int64).tolist(),
        "bytes": text_bytes,
    }
    stride = max(1, length // 2)
    decoding = {"method": "sliding window", "sequence_length": length, "stride": stride}
    return _Scored(rows, metrics, language_signature(), decoding)


def _score_masked(
    network: nn.Module, config: TrialConfig, prepared: PreparedData, encoded: EncodedData, alive: Alive
) -> _Scored:
    """The words behind masks whose places follow from the text and the seed."""
    texts, split = prepared.split("test"), encoded.split("test")
    length = config.model.sequence_length
    settings = masked_settings(config, encoded)
    batches = masked_windows(
        split, sequence_length=length, batch_tokens=config.training.batch_tokens, settings=settings, seed=config.seed
    )
    place = device(network)
    parts: list[list[np.ndarray[Any, Any]]] = [[], [], []]
    for batch in batches:
        with torch.inference_mode():
            scores = next_token_scores(network(batch.shown_BT.to(place)), batch.target_BT.to(place), PAD)
        inside_BT = batch.shown_BT != PAD
        for part, held in zip(parts, (scores.nll_BT, scores.correct_BT, scores.counted_BT), strict=True):
            part.append(held.cpu()[inside_BT].double().numpy())
        alive()
    nll_N, correct_N, masked_N = (np.concatenate(part) for part in parts)
    masked = float(masked_N.sum())
    loss = float(nll_N.sum()) / masked if masked else math.nan
    rows: dict[str, Sequence[Any]] = {
        "id": texts["id"],
        "length": split["text"].lengths.tolist(),
        "unknown": split["text"].shares_of(UNK).tolist(),
        "nll": per_document(split, nll_N).tolist(),
        "correct": per_document(split, correct_N).astype(np.int64).tolist(),
        "target_tokens": per_document(split, masked_N).astype(np.int64).tolist(),
    }
    metrics = {
        "loss": loss,
        "perplexity": perplexity(loss),
        "accuracy": float(correct_N.sum()) / masked if masked else math.nan,
    }
    decoding = {"method": "masks", "share": MASKED_SHARE, "seed": config.seed, "sequence_length": length}
    return _Scored(rows, metrics, masked_signature(), decoding)


def masked_signature() -> dict[str, str]:
    """What each test metric of a masked language model means."""
    return {
        "loss": "nats a masked token; 15 % of the tokens are masked, at places that follow from text and seed",
        "perplexity": "exp of the loss",
        "accuracy": "share of masked tokens told right",
    }


def language_signature() -> dict[str, str]:
    """What each test metric of a language model means."""
    return {
        "bits_per_byte": "bits of every token of the text and of each document's end, an unknown character as one of "
        "all code points, over the bytes of the text in UTF-8; windows move on by half their length",
        "loss": "nats a token, end of document included",
        "perplexity": "exp of the loss",
        "accuracy": "share of right next tokens, end of document included",
    }


def _score_translation(
    network: nn.Module, config: TrialConfig, prepared: PreparedData, encoded: EncodedData, alive: Alive
) -> _Scored:
    """Greedy decoding of every source, and the likelihood of every reference."""
    texts = prepared.split("test")
    references: list[str] = list(texts["target"])
    split = encoded.split("test")
    length = config.model.sequence_length
    batches, cut = eval_batches(split, sequence_length=length, batch_tokens=config.training.batch_tokens)
    hypotheses = [""] * len(references)
    nll, correct, tokens = ([0.0] * len(references), [0] * len(references), [0] * len(references))
    row = {example: index for index, example in enumerate(texts["id"])}
    place = device(network)
    for batch in batches:
        source_BS = batch.source_BS.to(place)
        said = greedy(cast("Stepper[Any]", network), source_BS, bos_id=BOS, eos_id=EOS, max_length=length)
        sums = zip(said, *(part_B.tolist() for part_B in _teacher_forced(network, batch)), strict=True)
        for example, (ids, *likelihood) in zip(batch.ids, sums, strict=True):
            index = row[int(example)]
            hypotheses[index] = encoded.tokenizers["target"].decode(ids)
            nll[index], correct[index], tokens[index] = likelihood
        alive()
    tokenizer = bleu_tokenizer(references)
    bleu, chrf = BLEU(tokenize=tokenizer, smooth_method="none"), CHRF()
    # Of Chinese by the character, too, as many papers have it.
    by_character = {"bleu_char": BLEU(tokenize="char", smooth_method="none")} if tokenizer == "zh" else {}
    exact = [int(hypothesis == reference) for hypothesis, reference in zip(hypotheses, references, strict=True)]
    metrics = {
        "exact_match": sum(exact) / len(exact),
        "bleu": float(bleu.corpus_score(hypotheses, [references]).score),
        "chrf": float(chrf.corpus_score(hypotheses, [references]).score),
        **{name: float(one.corpus_score(hypotheses, [references]).score) for name, one in by_character.items()},
        "loss": sum(nll) / sum(tokens),
        "perplexity": perplexity(sum(nll) / sum(tokens)),
        "accuracy": sum(correct) / sum(tokens),
    }
    rows: dict[str, Sequence[Any]] = {
        "id": texts["id"],
        "length": split["source"].lengths.tolist(),
        "unknown": split["source"].shares_of(UNK).tolist(),
        "exact_match": exact,
        "bleu": _statistics(bleu, hypotheses, references),
        "chrf": _statistics(chrf, hypotheses, references),
        **{name: _statistics(one, hypotheses, references) for name, one in by_character.items()},
        "nll": nll,
        "correct": correct,
        "target_tokens": tokens,
        "prediction": hypotheses,
    }
    signature = metric_signature(bleu=bleu, chrf=chrf, **by_character)
    return _Scored(rows, metrics, signature, {"method": "greedy", "max_length": length}, cut_off=cut)


def metric_signature(**by_sacrebleu: BLEU | CHRF) -> dict[str, str]:
    """What each test metric means, in sacrebleu's own words where it has some."""
    return {
        **{name: str(metric.get_signature()) for name, metric in by_sacrebleu.items()},
        "exact_match": "the whole text, character by character",
        "loss": "nats a target token, end token included",
        "perplexity": "exp of the loss",
        "accuracy": "share of right next tokens under teacher forcing, end token included",
    }


@torch.inference_mode()
def _teacher_forced(network: nn.Module, batch: TranslationBatch) -> tuple[torch.Tensor, ...]:
    """By pair: summed negative log-likelihood in nats, right next tokens, number of them."""
    place = device(network)
    source_BS, target_BT = batch.source_BS.to(place), batch.target_BT.to(place)
    return next_token_scores(network(source_BS, target_BT[:, :-1]), target_BT[:, 1:], PAD).per_row()


def _statistics(metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> list[list[int]]:
    """Sufficient statistics by example: their sum over examples gives the corpus score."""
    return [[int(value) for value in row] for row in metric._extract_corpus_statistics(hypotheses, [references])]
