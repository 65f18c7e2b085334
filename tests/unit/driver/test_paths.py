"""What lies on disk is named by short ids, whatever a spec and its points hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from driven_sweep import driven_sweep

from tuneyard_pipelines.journal import SweepFolder, TrialCreated
from tuneyard_pipelines.spec import display_name

LONGEST = 24
WILD = ("slash/ed", "two words", "日期翻译", "../up", "a=b,c", "x" * 300)
POINT = {f"model.a_rather_long_key_of_a_model_{number}": f"{WILD[number % 6]} {number}" for number in range(25)}
RANGES = (
    "model={d_model: [16, 32], num_heads: [1, 2], num_layers: {int: [1, 2]}, sequence_length: [24, 48], "
    "d_ff: [32, 64], dropout: {uniform: [0.0123, 0.1]}, positions: [sinusoidal, learned]}",
    "training={max_tokens: 3000, batch_tokens: [256, 512], learning_rate: {loguniform: [1e-4, 1e-2]}, "
    "warmup: [0.0123, 0.1], min_learning_rate_share: [0.0123, 0.1], weight_decay: [0.0123, 0.1], "
    "gradient_clip: [0.0123, 0.1], label_smoothing: [0.0123, 0.1], adam_beta2: [0.9123, 0.99], evaluations: [3, 4]}",
    "data.tokenizer={type: bpe, vocab_size: [300, 400]}",
    f"description='{' '.join(WILD)}'",
    f"tags={{team: '{' '.join(WILD)}'}}",
)


def test_s7_paths_are_short_and_hold_no_value_of_a_point(tmp_path: Path) -> None:
    sweep = driven_sweep(
        home=tmp_path, sweep_id="5eed0001", name="dates", overrides=RANGES, uri="http://127.0.0.1:9", data=None
    )
    assert len(sweep.folder.header().spec.ranges) == 17, "every key that may be a range"
    sweep.begin()
    sweep.journal.append(TrialCreated("t001", 1, display_name(1, POINT), POINT, sweep.now_ms()))
    sweep.start("t001")
    sweep.measure("t001", 10, {"val/loss": 1.0, "val/exact_match": 0.0})
    sweep.reach("t001", rung=0, score=0.0)
    assert sweep.folder.state().trials["t001"].point == POINT, "the point is whole in the journal"

    folder = sweep.folder
    named = [folder.model("t001"), folder.evidence("t001"), folder.attempt("t001", 1)]
    written = [path for path in folder.path.rglob("*") if path.is_file()]
    assert {"metrics.jsonl", "state.ckpt", "manifest.json", "trials.jsonl", "sweep.json"} <= {p.name for p in written}
    for path in (*named, *written):
        parts = path.relative_to(tmp_path).parts
        assert max(len(part.encode()) for part in parts) <= LONGEST, path
        assert len(str(path.relative_to(tmp_path)).encode()) <= 100, path
        assert path.relative_to(tmp_path).as_posix().isascii(), path
        assert not [
            text for text in (*WILD, "a_rather_long_key", "0.0123", " ") if text in str(path.relative_to(tmp_path))
        ]


def test_s7_every_trial_and_attempt_has_a_folder_of_its_own(make_folder: Callable[..., SweepFolder]) -> None:
    folder = make_folder()
    places = {folder.attempt(f"t{number:03d}", attempt) for number in (1, 11, 111, 1111) for attempt in (1, 11)}
    assert len(places) == 8
    assert all(place.is_relative_to(folder.path) for place in places)
