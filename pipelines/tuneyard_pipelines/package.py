"""A trained model as a folder that needs no pickle, and back: weights, tokenizer, the point, a manifest of digests.

    weights.safetensors   the network's parameters
    tokenizer.json        the vocabulary; where sources have their own, tokenizer.source.json and tokenizer.target.json
    model.json            task, architecture and every setting of the point, sizes of vocabularies, versions of Tuneyard
                          and of the packages that the architecture and the tokenizer come from
    manifest.json         SHA-256 of each file above; its own SHA-256 is the model's digest

The same folder lies inside the MLflow model, whose code file is `mlflow_model.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tuneyard_modules.decoding import Restarting, WindowedStepper, greedy
from tuneyard_pipelines import architectures
from tuneyard_pipelines.answers import Answer, Candidate, Continuer, Speaker, Translator, decoding_of, device
from tuneyard_pipelines.build import build_network
from tuneyard_pipelines.catalog import TASK_DATA
from tuneyard_pipelines.data import BOS, EOS, PAD, UNK, TextTokenizer
from tuneyard_pipelines.data.text_tokenizer import Piece, load_tokenizers, save_tokenizers, sizes, tokenizer_file
from tuneyard_pipelines.errors import InputError, RefusedError, first_line
from tuneyard_pipelines.formulas import VocabSizes
from tuneyard_pipelines.masks import Filler
from tuneyard_pipelines.spec import TrialConfig

WEIGHTS, MODEL, MANIFEST = "weights.safetensors", "model.json", "manifest.json"
FORMAT = 1
_FILES = [  # of a whole package: with one vocabulary, or with one for each side
    {MODEL, WEIGHTS, *map(tokenizer_file, columns)} for columns in ([""], TASK_DATA["translation"].columns)
]


@dataclass(frozen=True)
class TextModel:
    """A loaded model: a translation model translates texts, a language model goes on with them."""

    network: nn.Module
    tokenizers: Mapping[str, TextTokenizer]
    """By column: source and target, or text."""
    config: TrialConfig

    def predict(self, texts: Sequence[str], **settings: Any) -> list[str]:
        """What the model makes of each text, by its likeliest tokens unless the settings say otherwise.

        >>> model.predict(["3. März 2024"])
        >>> model.predict(["3. März 2024"], beam=5, length_penalty=1.0)
        >>> model.predict(["import "], temperature=0.8, top_p=0.95, seed=1, max_new_tokens=40)

        The settings are those of `Decoding` (`tuneyard_modules.decoding`); of several candidates this is the first.

        Translation: texts past `sequence_length` tokens are cut off, as in training. Language modeling: the
        continuation alone, up to CONTINUATION_TOKENS tokens; of a text past `sequence_length` the end is read.
        `decode` tells where that happened. Raises InputError for settings out of range or against each other, and for
        a beam larger than the vocabulary.
        """
        return [answer.candidates[0].text for answer in self.decode(texts, **settings)]

    def decode(self, texts: Sequence[str], *, steps: bool = False, **settings: Any) -> list[Answer]:
        """What the model makes of each text, with all that there is to know of it; settings and errors as `predict`.

        >>> (answer,) = model.decode(["3. März 2024"], beam=5, n_best=3, steps=True)
        >>> [(candidate.text, candidate.score) for candidate in answer.candidates]
        >>> answer.candidates[0].steps[0].likeliest  # five tokens with their probabilities
        >>> answer.cut, answer.notes  # how many tokens of the text were not read, and what is amiss with it
        """
        return self._speaker().answers(texts, decoding_of(settings), steps=steps)

    def score(self, texts: Sequence[str], references: Sequence[str]) -> list[Candidate]:
        """How likely the model finds a given text: log-probabilities in nats, and each token with the likeliest ones.

        >>> model.score(["3. März 2024"], ["2024-03-03"])[0].score

        A reference is the translation, its end counted, or what goes on from the text, which need not end there. Raises
        InputError for a reference longer than a translation can be, and unless there is one for each text.
        """
        return self._speaker().scores(texts, references)

    def _speaker(self) -> Speaker | Filler:
        if self.config.task == "masked_lm":
            return Filler(self.network, self.tokenizers["text"], self.config.model.sequence_length)
        kind = Continuer if self.config.task == "language_modeling" else Translator
        return kind(self.network, self.tokenizers, self.config.model.sequence_length)

    def pieces(self, text: str, side: str | None = None) -> list[Piece]:
        """The tokens that the model reads of a text as its source, or has as its target; `side` names the column.

        Raises InputError for a side that the model has not.
        """
        sides = tuple(self.tokenizers)
        if side is not None and (len(sides) == 1 or side not in sides):
            message = f"one of {', '.join(sides)}" if len(sides) > 1 else "a language model has one: leave it out"
            raise InputError(f"--side {side}: {message}")
        return self.tokenizers[side or sides[0]].pieces(text)


def continued(network: nn.Module, tokenizer: TextTokenizer, ids: Sequence[int], most: int) -> str:
    """How the model goes on with a text, always by the likeliest token, up to `most` tokens or the text's end."""
    prompt_BT = torch.tensor([[BOS, *ids]], device=device(network))
    (said,) = greedy(
        Restarting(cast("WindowedStepper[Any]", network)),
        prompt_BT[:, :-1],
        bos_id=prompt_BT[:, -1],
        eos_id=EOS,
        max_length=most + 1,
        banned_ids=(PAD, BOS, UNK),
    )
    return tokenizer.continuation(said) if ids else tokenizer.decode(said)


def pack(folder: Path, network: nn.Module, tokenizers: Mapping[str, TextTokenizer], config: TrialConfig) -> None:
    """Write the model to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    # The output shares its matrix with the embedding: clone, since safetensors refuses memory that is held twice.
    save_file({name: value.detach().cpu().clone() for name, value in network.state_dict().items()}, folder / WEIGHTS)
    files = (MODEL, WEIGHTS, *save_tokenizers(tokenizers, folder))
    held = sizes(tokenizers)
    needed = {one.name: one.version for one in architectures.packages([str(config.model.architecture)])}
    needed |= {name: version(name) for tokenizer in tokenizers.values() for name in tokenizer.requirements}
    facts = {
        "format": FORMAT,
        "tuneyard": version("tuneyard"),
        **({"packages": needed} if needed else {}),
        "vocab_size": held.target,
        **({} if held.source is None else {"source_vocab_size": held.source}),
        "config": config.model_dump(mode="json"),
    }
    (folder / MODEL).write_text(json.dumps(facts, indent=1, ensure_ascii=False))
    (folder / MANIFEST).write_text(json.dumps({name: _sha256(folder / name) for name in sorted(files)}))


def digest(folder: Path) -> str:
    """One name for every byte of a packaged model."""
    return _sha256(folder / MANIFEST)


def load(folder: Path, expected: str | None = None) -> TextModel:
    """Read what `pack` wrote; no file is executed.

    Raises RefusedError when a file differs from the manifest, or the manifest from the digest `expected`; InputError
    when `folder` holds no model, or one whose architecture comes from a package that is not installed here, or that
    is of another version and builds another network.
    """
    try:
        verify(folder, expected)
        facts = json.loads((folder / MODEL).read_text())
        if facts["format"] != FORMAT:
            raise ValueError(f"its format is {facts['format']!r}, this version of Tuneyard reads {FORMAT}")
        needed = facts.get("packages", {})
        _check_installed(folder, needed)
        config = TrialConfig.model_validate(facts["config"])
        network = build_network(config, VocabSizes(facts["vocab_size"], facts.get("source_vocab_size")))
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise InputError(f"{folder}: not a packaged model ({cause})") from cause
    try:
        network.load_state_dict(load_file(folder / WEIGHTS))
    except RuntimeError as cause:
        if not needed:
            raise
        raise InputError(
            f"{folder}: its weights do not fit the network that is built here ({first_line(cause)}); it was made with "
            f"{_wanted(needed)}: install that"
        ) from cause
    network.eval()
    return TextModel(network, load_tokenizers(folder, TASK_DATA[config.task].columns), config)


def _check_installed(folder: Path, needed: Mapping[str, str]) -> None:
    """Raises InputError unless the packages are there, of whatever version."""
    for name in needed:
        try:
            version(name)
        except PackageNotFoundError:
            raise InputError(f"{folder}: this model needs {_wanted(needed)}, which is not installed here") from None


def _wanted(needed: Mapping[str, str]) -> str:
    return " and ".join(f"{name}=={held}" for name, held in needed.items())


def verify(folder: Path, expected: str | None) -> None:
    """Raises RefusedError unless every file is the one that was packed."""
    manifest = json.loads((folder / MANIFEST).read_text())
    if expected is not None and digest(folder) != expected:
        raise RefusedError(f"{folder}: manifest.json is not the one that was registered; the model is not loaded")
    if not isinstance(manifest, dict) or manifest.keys() not in _FILES:
        raise RefusedError(f"{folder / MANIFEST}: does not name the files of a packaged model; the model is not loaded")
    for name, packed in manifest.items():
        if _sha256(folder / name) != packed:
            raise RefusedError(f"{folder / name}: its content is not what was packed; the model is not loaded")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
