"""A cluster that runs drivers on paper only, for tests of who is submitted when; integration tests have a real one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tuneyard import driver
from tuneyard.jobs import DriverEnd
from tuneyard.ray_jobs import RayJob
from tuneyard_pipelines.capacity import Node
from tuneyard_pipelines.errors import UnreachableError


@dataclass
class Cluster:
    """What `RayJobs` offers. Each of its jobs runs until `end`; `away` makes it silent."""

    home: Path
    there: list[Node] = field(default_factory=lambda: [Node(cpus=1000, gpus=8, memory_bytes=1 << 50)])
    jobs: dict[str, RayJob] = field(default_factory=dict)
    environments: dict[str, Mapping[str, str]] = field(default_factory=dict)
    submitted: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    most_at_once: int = 0
    away: bool = False

    def submit(self, submission_id: str, entrypoint: str, environment: Mapping[str, str], *, home: str) -> RayJob:
        self._answer()
        if submission_id not in self.jobs:
            self.jobs[submission_id] = RayJob(submission_id, "RUNNING", "", home=home)
            self.environments[submission_id] = environment
            self.submitted.append(submission_id)
            self.most_at_once = max(self.most_at_once, len(self.running))
        return self.jobs[submission_id]

    def get(self, submission_id: str) -> RayJob | None:
        self._answer()
        return self.jobs.get(submission_id)

    def all(self) -> list[RayJob]:
        self._answer()
        return list(self.jobs.values())

    def stop(self, submission_id: str) -> None:
        self._answer()
        self.stopped.append(submission_id)

    def nodes(self) -> list[Node]:
        self._answer()
        return self.there

    @property
    def running(self) -> list[str]:
        return [name for name, job in self.jobs.items() if not job.ended]

    def end(self, submission_id: str, end: DriverEnd | None) -> None:
        """The driver is gone; it left its word, or None: it was killed."""
        self.jobs[submission_id] = replace(self.jobs[submission_id], status="FAILED", exit_code=137)
        if end is not None:
            folder = self.home / "sweeps" / submission_id.rpartition("-a")[0]
            (folder / driver.END).write_text(json.dumps({"submission_id": submission_id, **asdict(end)}))

    def _answer(self) -> None:
        if self.away:
            raise UnreachableError("Ray does not answer")
