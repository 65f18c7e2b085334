"""The translation objective: what it learns, what it scores, and how it logs."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import pytest
import pytorch_lightning as pl
import sacrebleu
import torch
from mean_loss import mean_loss
from torch.nn import functional as F
from torchmetrics.functional.text import chrf_score

from tuneyard_modules.objective import Loader, Optimization
from tuneyard_modules.transformer import EncoderDecoder, TransformerConfig
from tuneyard_modules.translation import (
    TranslationBatch,
    TranslationModule,
    TranslationSettings,
    bleu_tokenizer,
    text_scores,
)

ENGLISH = (
    ["the cat sat on the old mat .", "dogs run over the green hills today", "a bird sings, at five o'clock!"],
    ["the cat sat on the mat .", "two dogs run over the green hills", "a bird sang, at five o'clock!"],
)
CHINESE = (
    ["今天天气很好,我们去公园。", "他在北京大学学习中文"],
    ["今天天气真好,我们去公园吧。", "他在北京大学学习汉语"],
)


def _say(ids: Sequence[int]) -> str:
    return "".join(chr(ord("a") + index - 4) for index in ids if index >= 4)


def _module(references: Sequence[str], **settings: Any) -> TranslationModule:
    torch.manual_seed(0)
    return TranslationModule(
        EncoderDecoder(TransformerConfig(14, 32, 4, 1, max_length=9, dropout=0.0)),
        Optimization(learning_rate=0.01, warmup=0.1),
        TranslationSettings(max_length=8, **settings),
        decode=_say,
        references=dict(enumerate(references)),
    )


def _batch(*, share: float = 0.0) -> TranslationBatch:
    """Four pairs of different lengths; a target spells its source backwards."""
    texts = ["abcde", "bad", "jihg", "c"]
    ids = [[ord(letter) - ord("a") + 4 for letter in text] for text in texts]
    source = [[*row, 2] + [0] * (5 - len(row)) for row in ids]
    target = [[1, *reversed(row), 2] + [0] * (5 - len(row)) for row in ids]
    return TranslationBatch([0, 1, 2, 3], torch.tensor(source), torch.tensor(target), 34, share)


REFERENCES = ["edcba", "dab", "ghij", "c"]


def _trainer(**options: Any) -> pl.Trainer:
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    return pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        logger=False,
        **options,
    )


def test_one_batch_can_be_overfitted() -> None:
    module = _module(REFERENCES)
    trainer = _trainer()
    trainer.fit(module, Loader(lambda: (_batch(share=step / 150) for step in range(150))), Loader(lambda: [_batch()]))
    scores = {name: value.item() for name, value in trainer.callback_metrics.items()}
    assert scores["val/loss"] < 0.05
    assert scores["val/accuracy"] == 1.0
    assert scores["val/exact_match"] == 1.0
    assert scores["val/chrf"] == pytest.approx(100.0)


def test_the_loss_is_the_mean_over_real_tokens_and_smoothed_in_training_only() -> None:
    plain, smoothed, batch = _module(REFERENCES), _module(REFERENCES, label_smoothing=0.2), _batch()
    log_probabilities = plain.network(batch.source_BS, batch.target_BT[:, :-1]).log_softmax(-1)
    following = batch.target_BT[:, 1:]
    picked = log_probabilities.gather(-1, following[..., None])[..., 0]
    real = following != 0
    expected = -picked[real].mean().item()
    assert mean_loss(plain, batch).item() == pytest.approx(expected, rel=1e-5)
    assert mean_loss(smoothed, batch).item() == pytest.approx(
        0.8 * expected - 0.2 * log_probabilities.mean(-1)[real].mean().item(), rel=1e-5
    )
    (logged,) = _trainer().validate(smoothed, Loader(lambda: [batch]), verbose=False)
    assert logged["val/loss"] == pytest.approx(expected, rel=1e-5)
    assert logged["val/perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)


def test_validation_weighs_tokens_not_batches() -> None:
    module, batch = _module(REFERENCES), _batch()
    long, short = _rows(batch, [0, 2]), _rows(batch, [3])
    (parts,) = _trainer().validate(module, Loader(lambda: [long, short]), verbose=False)
    (whole,) = _trainer().validate(module, Loader(lambda: [_rows(batch, [0, 2, 3])]), verbose=False)
    assert parts == pytest.approx(whole, rel=1e-5)
    following = batch.target_BT[[0, 2, 3], 1:]
    logits = module.network(batch.source_BS[[0, 2, 3]], batch.target_BT[[0, 2, 3], :-1])
    assert parts["val/loss"] == pytest.approx(
        F.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=0).item(), rel=1e-5
    )
    assert parts["val/accuracy"] == pytest.approx(
        (logits.argmax(-1) == following)[following != 0].float().mean().item(), rel=1e-5
    )


def test_a_target_that_was_cut_off_is_never_matched() -> None:
    whole = "abcabcabcabc"
    module = _module([whole])
    module.network = _Parrot([*(ord(letter) - ord("a") + 4 for letter in whole), 2])  # type: ignore[assignment]
    source, target = torch.tensor([[5, 2]]), torch.tensor([[1, 4, 5, 6, 4, 5, 6, 4, 2]])
    (scores,) = _trainer().validate(
        module, Loader(lambda: [TranslationBatch([0], source, target, 10, 0.0)]), verbose=False
    )
    assert scores["val/exact_match"] == 0.0
    assert module.translate(source) == [whole[:7]]


@pytest.mark.parametrize("poison", [math.nan, 1e6])
def test_a_spoiled_model_still_validates(poison: float) -> None:
    module = _module(REFERENCES)
    with torch.no_grad():
        module.network.decoder_norm.weight.fill_(poison)
    trainer = _trainer()
    trainer.validate(module, Loader(lambda: [_batch()]), verbose=False)
    scores = {name: value.item() for name, value in trainer.callback_metrics.items()}
    assert not any(math.isinf(score) for score in scores.values())
    assert math.isnan(scores["val/perplexity"])
    assert scores["val/exact_match"] == 0.0


def test_what_cannot_be_computed_is_nan() -> None:
    module = _module(REFERENCES)
    logged: dict[str, float] = {}
    module.log_dict = lambda scores, **_: logged.update(scores)  # type: ignore[method-assign]
    module.__dict__["_trainer"] = None
    module.on_validation_epoch_start()
    module.on_validation_epoch_end()
    assert all(math.isnan(score) for name, score in logged.items() if name.startswith("val/"))
    assert len(logged) == 7


@pytest.mark.parametrize(("texts", "tokenizer"), [(ENGLISH, "13a"), (CHINESE, "zh")])
def test_scores_agree_with_sacrebleu_and_torchmetrics(texts: tuple[list[str], list[str]], tokenizer: Any) -> None:
    predictions, references = texts
    assert bleu_tokenizer(references) == tokenizer
    scores = text_scores(predictions, references, tokenizer=tokenizer)
    expected = sacrebleu.corpus_bleu(predictions, [references], tokenize=tokenizer).score
    assert scores["bleu"] == pytest.approx(expected, abs=1e-3)
    assert 0 < scores["bleu"] < 100
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(predictions, [references]).score, abs=1e-9)
    torchmetrics_chrf = chrf_score(predictions, [[reference] for reference in references], n_word_order=0)
    assert scores["chrf"] == pytest.approx(100 * torchmetrics_chrf.item(), abs=1e-2)


def test_exact_match_is_a_share() -> None:
    assert text_scores(["a", "b ", "c", ""], ["a", "b", "C", ""], tokenizer="13a")["exact_match"] == 0.5


@pytest.mark.parametrize(
    ("references", "tokenizer"),
    [
        (["2024-01-31", ""], "13a"),
        ([], "13a"),
        (["2024年1月31日"], "zh"),
        (["the word 猫 means cat"], "13a"),
        (["他用 git 管理所有的代码"], "zh"),
        (["こんにちは"], "13a"),
    ],
)
def test_the_tokenizer_follows_from_the_references(references: list[str], tokenizer: str) -> None:
    assert bleu_tokenizer(references) == tokenizer


def _rows(batch: TranslationBatch, rows: list[int]) -> TranslationBatch:
    return batch._replace(ids=rows, source_BS=batch.source_BS[rows], target_BT=batch.target_BT[rows])


class _Parrot(torch.nn.Module):
    """Says one sequence, whatever the source."""

    def __init__(self, ids: list[int]) -> None:
        super().__init__()
        self.ids = ids

    def forward(self, source_BS: torch.Tensor, target_BT: torch.Tensor) -> torch.Tensor:
        said = torch.tensor(self.ids[: target_BT.shape[1]])
        return F.one_hot(said, 14).float().expand(len(source_BS), -1, -1)

    def start(self, source_BS: torch.Tensor) -> _Place:
        return _Place(torch.zeros(len(source_BS), dtype=torch.int64))

    def step(self, tokens_B: torch.Tensor, state: _Place) -> tuple[torch.Tensor, _Place]:
        said_B = torch.tensor(self.ids)[state.position_B]
        return F.one_hot(said_B, 14).float(), _Place(state.position_B + 1)


class _Place:
    def __init__(self, position_B: torch.Tensor) -> None:
        self.position_B = position_B

    def select(self, index_N: torch.Tensor) -> _Place:
        return _Place(self.position_B[index_N])
