"""A sweep as a notebook sees it: how it stands, its trials and curves as frames, its winner as a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuneyard import settings, sweeps
from tuneyard.sweeps import Row, View
from tuneyard_pipelines.journal import SweepFolder
from tuneyard_pipelines.metrics import MetricReader

if TYPE_CHECKING:
    import pandas as pd

    from tuneyard.local import TextModel
    from tuneyard_pipelines.spec import SweepSpec

CURVES = ("trial", "step", "metric", "value", "time")


@dataclass(frozen=True)
class Sweep:
    """A sweep of this machine. Every property and table reads its folder, so that a running one can be looked at.

    >>> sweep = tuneyard.open_sweep("322eb644")
    >>> sweep.trials().query("outcome == 'completed'")[["trial", "model.num_heads", "score"]]
    >>> sweep.model().predict(["3. März 2024"])
    """

    folder: SweepFolder

    def __repr__(self) -> str:
        return "\n".join(f"{label:<8}{text}" for label, text in self.view.facts())

    @property
    def id(self) -> str:
        return self.folder.sweep_id

    @property
    def path(self) -> Path:
        """The folder that holds all of it."""
        return self.folder.path

    @property
    def spec(self) -> SweepSpec:
        """As it was accepted."""
        return self.folder.header().spec

    @property
    def view(self) -> View:
        """All that there is to say of it; what `tuneyard sweep show` prints."""
        return sweeps.look(self.folder)

    @property
    def state(self) -> str:
        """running, finished, failed, interrupted or lost."""
        return self.view.state

    @property
    def metric(self) -> str:
        """What trials are compared by."""
        return self.spec.metric

    @property
    def best(self) -> Row | None:
        """The trial that was scored; before there is one, the best so far."""
        return self.view.best

    @property
    def test(self) -> dict[str, float]:
        """The winner's metrics on the test split; empty until it has been scored."""
        scored = self.folder.state().scored
        return dict(scored.metrics) if scored else {}

    @property
    def report(self) -> Path | None:
        """Its page of figures, which needs no network; None until there is one."""
        return Path(self.view.report) if self.view.report else None

    def trials(self) -> pd.DataFrame:
        """A row a trial, the best first.

        Columns: trial, variant ("" without variants), outcome (running or waiting while there is none), score (the best
        validation of the sweep's metric, NaN without one), share of the budget, tokens, seconds of training, message;
        and each varied key in full, such as model.num_heads, which is missing where its variant does not vary it.
        """
        import pandas as pd

        keys = self.spec.varied
        rows = [
            {
                "trial": row.trial,
                "variant": row.variant,
                "outcome": row.state,
                "score": row.score,
                "share": row.share,
                "tokens": row.tokens,
                "seconds": row.seconds,
                "message": row.message,
                **{key: row.point.get(key) for key in keys},
            }
            for row in self.view.leaderboard
        ]
        columns = ["trial", "variant", "outcome", "score", "share", "tokens", "seconds", "message", *keys]
        return pd.DataFrame(rows, columns=columns).astype({"score": float, "share": float, "seconds": float})

    def curves(self) -> pd.DataFrame:
        """A row a measured value: trial, step (optimiser updates), metric, value, time (UTC).

        >>> losses = sweep.curves().query("metric == 'train/loss'")
        >>> losses.pivot(index="step", columns="trial", values="value").plot()
        """
        import pandas as pd

        state = self.folder.state()
        values = [
            (trial, one.step, one.key, one.value, one.time_ms)
            for trial in state.trials
            for one in MetricReader(self.folder, trial).new(state)
        ]
        frame = pd.DataFrame(values, columns=CURVES)
        frame["time"] = pd.to_datetime(frame["time"], unit="ms", utc=True)
        return frame

    def model(self) -> TextModel:
        """The winner, scored and packaged. Raises InputError before there is one."""
        from tuneyard.local import load_model

        return load_model(f"sweep:{self.id}/{self.view.scored or ''}", home=self.path.parent.parent)


def open_sweep(sweep_id: str, *, home: Path | None = None) -> Sweep:
    """The sweep of this machine whose id begins so. Raises InputError when none or several do."""
    return Sweep(sweeps.find(home or settings.find_home(), sweep_id))
