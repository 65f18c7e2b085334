"""One tiny point of every architecture, its network and module, and batches to train it on; all seeded.

After a change that is meant to train otherwise, the golden losses are written anew:
python tests/support/families.py > tests/unit/families/golden_losses.json
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytorch_lightning as pl
import torch
from mean_loss import mean_loss
from torch import Tensor, nn

from tuneyard_modules.language_modeling import LanguageBatch, LanguageModelingModule, LanguageSettings
from tuneyard_modules.masked_lm import Draws, MaskedBatch, MaskedLanguageModule, MaskedSettings, mask_words
from tuneyard_modules.objective import Optimization, SequenceModule
from tuneyard_modules.translation import TranslationBatch, TranslationModule, TranslationSettings
from tuneyard_pipelines import architectures
from tuneyard_pipelines.build import build_network
from tuneyard_pipelines.formulas import VocabSizes
from tuneyard_pipelines.spec import SweepSpec, TrialConfig

VOCAB = 24
LENGTH = 12
SIZES = VocabSizes(VOCAB)
TINY: dict[str, Any] = {
    "d_model": 32,
    "num_layers": 2,
    "num_heads": 2,
    "d_ff": 48,
    "dropout": 0.0,
    "sequence_length": LENGTH,
    "order": 4,
    "window": 3,
    "kernel_size": 3,
}
NEURAL = tuple(name for name, one in architectures.OURS.items() if not one.counts)
LANGUAGE = tuple(name for name, one in architectures.OURS.items() if "language_modeling" in one.tasks)
TRANSLATION = tuple(name for name, one in architectures.OURS.items() if "translation" in one.tasks)
MASKED = tuple(name for name, one in architectures.OURS.items() if "masked_lm" in one.tasks)


def config(architecture: str, **model: Any) -> TrialConfig:
    """The tiny point of an architecture; `model` are other values of its keys."""
    one = architectures.find(architecture)
    held = {key: value for key, value in {**TINY, **model}.items() if one.follows(f"model.{key}")}
    if architecture == "seq2seq" and held.get("attention") != "multi_head":
        held["num_heads"] = 1
    source = "builtin/copy" if one.tasks[0] == "translation" else "builtin/stdlib"
    spec = {
        "name": "families",
        "task": one.tasks[0],
        "data": {"source": source},
        "model": {"architecture": architecture, **held},
        "training": {"max_steps": 20},
    }
    return SweepSpec.model_validate(spec).at({})


def network(architecture: str, *, seed: int = 0, sizes: VocabSizes = SIZES, **model: Any) -> nn.Module:
    """An untrained network."""
    torch.manual_seed(seed)
    return build_network(config(architecture, **model), sizes)


def module(
    architecture: str, network: nn.Module, learning_rate: float = 3e-3, *, warmup: float = 0.0
) -> SequenceModule:
    """The network with its loss, and a trainer, whose precision the optimiser asks for."""
    optimization = Optimization(learning_rate=learning_rate, warmup=warmup, weight_decay=0.0)
    made: SequenceModule
    if architecture in TRANSLATION:
        settings = TranslationSettings(max_length=LENGTH)
        made = TranslationModule(network, optimization, settings, decode=str, references={0: "a"})
    elif architecture in MASKED:
        made = MaskedLanguageModule(network, optimization, MaskedSettings(mask_id=VOCAB))
    else:
        made = LanguageModelingModule(network, optimization, LanguageSettings(), text_bytes=1)
    made.trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    return made


def ids(*shape: int, seed: int = 0) -> Tensor:
    """Random words."""
    return torch.randint(4, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def batch(architecture: str, *, seed: int = 0, rows: int = 4) -> Any:
    """Random words to translate, to go on with, or to be masked."""
    words_BT = ids(rows, LENGTH - 1, seed=seed)
    begun_BT = torch.cat([torch.ones(rows, 1, dtype=torch.int64), words_BT], dim=1)
    if architecture in TRANSLATION:
        ended_BT = torch.cat([words_BT, torch.full((rows, 1), 2)], dim=1)
        target_BT = torch.cat([begun_BT, torch.full((rows, 1), 2)], dim=1)
        return TranslationBatch(list(range(rows)), ended_BT, target_BT, tokens=2 * rows * LENGTH, share=0.0)
    if architecture in MASKED:
        settings = MaskedSettings(mask_id=VOCAB)
        draws = Draws.of(words_BT.shape, settings, torch.Generator().manual_seed(seed))
        return MaskedBatch(*mask_words(words_BT, settings, draws), tokens=rows * (LENGTH - 1))
    return LanguageBatch(begun_BT[:, :-1], words_BT, tokens=rows * (LENGTH - 1), share=0.0)


def inputs(architecture: str, given: Any) -> tuple[Tensor, ...]:
    """What the network's `forward` takes of a batch."""
    if architecture in TRANSLATION:
        return given.source_BS, given.target_BT[:, :-1]
    return (given.shown_BT,) if architecture in MASKED else (given.tokens_BT,)


def losses(trained: SequenceModule, batches: Iterable[Any]) -> list[float]:
    """The losses of one step on each batch: forward, backward, clip to norm 1, the module's own optimiser and rate."""
    optimizer = trained.configure_optimizers()
    trained.train()
    found = []
    for given in batches:
        loss = mean_loss(trained, given)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = trained.learning_rate(given.share)
        optimizer.step()
        found.append(loss.item())
    return found


def golden(architecture: str) -> list[float]:
    """The losses of twenty steps, with dropout."""
    trained = module(architecture, network(architecture, dropout=0.1))
    torch.manual_seed(7)
    return losses(trained, [batch(architecture, seed=step) for step in range(20)])


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({name: golden(name) for name in NEURAL}, indent=1))
