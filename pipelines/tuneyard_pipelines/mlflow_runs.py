"""A sweep's runs in MLflow, one parent and one child a trial: found again by their tags, or made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuneyard_pipelines.journal import Header, SweepState, TrialState
from tuneyard_pipelines.metrics import MetricValue
from tuneyard_pipelines.standing import Shown

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PARAMS_A_BATCH = 100
PARAM_LENGTH = 6000  # characters
SOURCE_TAGS = {"mlflow.source.name": "tuneyard", "mlflow.source.type": "JOB"}


class Runs:
    """The sweep's runs in MLflow: found by tag or made, with what they show kept so that only changes are sent."""

    def __init__(self, client: MlflowClient, header: Header, state: SweepState) -> None:
        self._client, self._header = client, header
        self._experiment = self._find_experiment()
        self._tags: dict[str, dict[str, str]] = {}
        self._params: dict[str, Mapping[str, str]] = {}
        self._described: set[str] = set()
        self._shown: dict[str, Shown] = {}
        self._children: dict[str, str] = {}
        self.parent = ""
        for run in self._mine():
            self._remember(run)
        if not self.parent:
            self._create_parent(state)
        self._describe_parent()

    def child(self, trial: TrialState, ran: str) -> str:
        """The trial's run, made if need be; `ran`: its `attempts`."""
        if trial.id not in self._children:
            run = self._client.create_run(
                self._experiment,
                start_time=trial.created_ms,
                run_name=trial.name,
                tags={
                    "tuneyard.sweep_id": self._header.sweep_id,
                    "tuneyard.trial_id": trial.id,
                    "mlflow.parentRunId": self.parent,
                    "tuneyard.attempts": ran,
                    **SOURCE_TAGS,
                },
            )
            self._remember(run)
        run_id = self._children[trial.id]
        if run_id not in self._described:
            params = {
                **self._header.spec.variant(trial.variant).at(trial.point).flat(),
                **({"variant": trial.variant} if trial.variant else {}),
                "data.source": self._header.spec.data.source,
                "data.fingerprint": self._header.data_fingerprint,
            }
            self._log_params(run_id, params)
            self._described.add(run_id)
        return run_id

    def tag(self, run_id: str, key: str) -> str | None:
        return self._tags[run_id].get(key)

    def link(self, trial: str) -> str:
        """The trial's run in MLflow's pages, from any of its pages."""
        return f"#/experiments/{self._experiment}/runs/{self._children.get(trial, '')}"

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        if self._tags[run_id].get(key) != value:
            self._client.set_tag(run_id, key, value[:8000])
            self._tags[run_id][key] = value

    def show(self, run_id: str, shown: Shown, ended_ms: int | None) -> None:
        if self._shown[run_id] == shown:
            return
        for key, value in (("tuneyard.outcome", shown.outcome), ("tuneyard.reason", shown.reason)):
            if value:
                self.set_tag(run_id, key, value)
            elif self._tags[run_id].pop(key, None) is not None:
                self._client.delete_tag(run_id, key)
        if shown.status in ("RUNNING", "SCHEDULED"):
            self._client.update_run(run_id, status=shown.status)
        else:
            self._client.set_terminated(run_id, shown.status, end_time=ended_ms)
        self._shown[run_id] = shown

    def log_metrics(self, run_id: str, metrics: Sequence[MetricValue]) -> None:
        from mlflow import entities

        values = [entities.Metric(m.key, m.value, m.time_ms, m.step) for m in metrics]
        self._client.log_batch(run_id, metrics=values)

    def _find_experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        name, uri = self._header.spec.name, self._header.tracking_uri
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return self._client.create_experiment(name, artifact_location(uri, self._header.home))
            except MlflowException:  # another sweep of this name was faster
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _mine(self) -> Iterable[Run]:
        """One run for the sweep and for each trial. A second one, whose request was given up and done late, is deleted.

        It is the one with fewer params, since nothing was ever sent to it.
        """
        found: dict[str | None, Run] = {}
        late: list[str] = []
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment], f"tags.`tuneyard.sweep_id` = '{self._header.sweep_id}'", page_token=token
            )
            for run in page:
                trial = run.data.tags.get("tuneyard.trial_id")
                other = found.setdefault(trial, run)
                if other is not run:
                    less, more = sorted((other, run), key=lambda each: (len(each.data.params), each.info.run_id))
                    found[trial] = more
                    late.append(less.info.run_id)
            token = page.token
            if not token:
                break
        for run_id in late:  # last, since it would move the pages
            self._client.delete_run(run_id)
        return found.values()

    def _remember(self, run: Run) -> None:
        run_id, tags = run.info.run_id, dict(run.data.tags)
        self._tags[run_id], self._params[run_id] = tags, run.data.params
        self._shown[run_id] = Shown(run.info.status, tags.get("tuneyard.outcome"), tags.get("tuneyard.reason", ""))
        if "tuneyard.trial_id" in tags:
            self._children[tags["tuneyard.trial_id"]] = run_id
        else:
            self.parent = run_id

    def _create_parent(self, state: SweepState) -> None:
        header = self._header
        run = self._client.create_run(
            self._experiment,
            start_time=state.started_ms or header.created_ms,
            run_name=f"{header.spec.name} {header.sweep_id}",
            tags={**header.spec.tags, "tuneyard.sweep_id": header.sweep_id, **SOURCE_TAGS},
        )
        self._remember(run)

    def _describe_parent(self) -> None:
        """Again at every attempt: the one before may have died in the middle of it."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        header = self._header
        self._log_params(self.parent, flatten(header.spec.model_dump(mode="json", by_alias=True, exclude={"tags"})))
        dataset = Dataset(
            name=header.spec.data.source[-500:],
            digest=header.data_fingerprint[:32],
            source_type="tuneyard",
            source=json.dumps({"source": header.spec.data.source, "prepared": str(header.data)}),
            profile=json.dumps({"examples": dict(header.examples), "findings": list(header.findings)}),
        )
        self._client.log_inputs(self.parent, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])
        self._client.log_text(self.parent, header.spec_text, "spec.yaml")

    def _log_params(self, run_id: str, params: Mapping[str, Any]) -> None:
        """Those that the run does not show yet: a param cannot change."""
        from mlflow.entities import Param

        items = [
            Param(key, _cut(str(value)))
            for key, value in params.items()
            if value is not None and key not in self._params[run_id]
        ]
        for start in range(0, len(items), PARAMS_A_BATCH):
            self._client.log_batch(run_id, params=items[start : start + PARAMS_A_BATCH])


def artifact_location(uri: str, home: Path) -> str | None:
    """Where a new experiment keeps its files: in the home when MLflow is a database; a server decides itself."""
    server = uri.startswith(("http:", "https:", "databricks"))
    return None if server else (home / "artifacts").resolve().as_uri()


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys; lists stay one value."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _cut(value: str) -> str:
    """MLflow would cut without a word; the sweep's run holds the whole spec as a file."""
    return value if len(value) <= PARAM_LENGTH else f"{value[: PARAM_LENGTH - 40]}... (whole in spec.yaml of the sweep)"
