"""Ray Jobs over its REST interface: submit a driver, ask what became of it, stop it, and see what the nodes hold.

A `submission_id` is used up for ever, and submitting it again is no error that could be told from others: whatever the
answer, only asking for the id tells whether the job is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from tuneyard_pipelines.capacity import Node
from tuneyard_pipelines.errors import UnreachableError, first_line

T = TypeVar("T")
TIMEOUT_S = 10.0
SUBMIT_TIMEOUT_S = 60.0  # the first one waits for the agent of a node that has just started
HOME = "tuneyard_home"  # in a job's metadata
_ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


@dataclass(frozen=True)
class RayJob:
    """What Ray says of a job.

    `exit_code` is known once a driver has ended by itself, `home` (whose sweep it drives) for those submitted here.
    """

    submission_id: str
    status: str
    message: str
    exit_code: int | None = None
    home: str = ""

    @property
    def ended(self) -> bool:
        return self.status in _ENDED


class RayJobs:
    """One cluster, by the address of its dashboard. Every method raises UnreachableError when it does not answer."""

    def __init__(self, address: str, token: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.address = address.rstrip("/")
        self._http = httpx2.Client(base_url=self.address, headers=headers, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def submit(self, submission_id: str, entrypoint: str, environment: Mapping[str, str], *, home: str) -> RayJob:
        """Have a driver started, once however often this is called with its id. It holds no CPU: its trials do."""
        body = {
            "submission_id": submission_id,
            "entrypoint": entrypoint,
            "entrypoint_num_cpus": 0,
            "runtime_env": {"env_vars": dict(environment)},
            "metadata": {HOME: home},
        }
        answer = self._ask("POST", "/api/jobs/", body, timeout_s=SUBMIT_TIMEOUT_S)
        if answer.status_code == 200:
            return RayJob(submission_id, "PENDING", "")
        found = self.get(submission_id)
        if found is None:
            raise UnreachableError(f"Ray at {self.address} did not take {submission_id} ({_said(answer)})")
        return found

    def get(self, submission_id: str) -> RayJob | None:
        """None for a job that this cluster does not know."""
        answer = self._ask("GET", f"/api/jobs/{submission_id}")
        return None if answer.status_code == 404 else self._read(answer, _job)

    def all(self) -> list[RayJob]:
        """Every job that the cluster knows of."""
        return self._read(
            self._ask("GET", "/api/jobs/"), lambda found: [_job(one) for one in found if one.get("submission_id")]
        )

    def stop(self, submission_id: str) -> None:
        """Have its driver told to end, and killed where it does not in time; nothing for one that is not there."""
        answer = self._ask("POST", f"/api/jobs/{submission_id}/stop")
        if answer.status_code != 404:
            self._good(answer)

    def nodes(self) -> list[Node]:
        """What each node that is alive holds in all."""
        return self._read(
            self._ask("GET", "/api/v0/nodes?detail=true"),
            lambda found: [
                Node.of(node["resources_total"])
                for node in found["data"]["result"]["result"]
                if node["state"] == "ALIVE"
            ],
        )

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> httpx2.Response:
        try:
            return self._http.request(method, path, json=body, timeout=timeout_s)
        except httpx2.HTTPError as cause:
            raise UnreachableError(
                f"Ray at {self.address} does not answer ({first_line(cause)}); start it, or name another dashboard"
            ) from cause

    def _read(self, answer: httpx2.Response, how: Callable[[Any], T]) -> T:
        """What it says, where it says what Ray says."""
        try:
            return how(self._good(answer).json())
        except (ValueError, KeyError, TypeError, AttributeError) as cause:
            raise UnreachableError(
                f"what answers at {self.address} is no dashboard of Ray ({_said(answer)}); name that with TUNEYARD_RAY"
            ) from cause

    def _good(self, answer: httpx2.Response) -> httpx2.Response:
        if answer.status_code == 401:
            raise UnreachableError(
                f"Ray at {self.address} refused the token; name the cluster's: RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH"
            )
        if answer.status_code != 200:
            raise UnreachableError(f"Ray at {self.address} failed ({_said(answer)})")
        return answer


def find_token(environment: Mapping[str, str] = os.environ) -> str | None:
    """The cluster's token, where Ray itself looks for it: RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, ~/.ray/auth_token."""
    if token := environment.get("RAY_AUTH_TOKEN"):
        return token.strip()
    path = Path(environment.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def _job(found: Mapping[str, Any]) -> RayJob:
    return RayJob(
        submission_id=found["submission_id"],
        status=found["status"],
        message=found.get("message") or "",
        exit_code=found.get("driver_exit_code"),
        home=(found.get("metadata") or {}).get(HOME, ""),
    )


def _said(answer: httpx2.Response) -> str:
    """The last line of what is often a whole traceback."""
    lines = [line for line in answer.text.strip().splitlines() if line.strip(" .")]
    return f"{answer.status_code}: {lines[-1][:300] if lines else 'no reason given'}"
