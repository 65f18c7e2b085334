"""Whatever can be sent to the service: what its description allows, and specs that are nearly right."""

from __future__ import annotations

import httpx2
import schemathesis
from driven_sweep import SPEC
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from service import Served
from waiting import PATIENCE_S

JUNK = [
    "",
    "null",
    "-1",
    "1e999",
    "[]",
    "{}",
    "[1, 2]",
    "{a: b}",
    "yes",
    "'",
    "\t",
    "é",
    "!!python/name:os.system",
    "&a",
    "*a",
    "4GiB",
    "0x",
    "..",
    "~",
]


def send_requests(served: Served, count: int) -> None:
    """About so many, alike for each route, none of which is to be answered with a fault of ours.

    Half of those that are about a sweep are about one that there is.
    """
    headers = {"Authorization": f"Bearer {served.token('root', 'admin')}"}
    described = schemathesis.openapi.from_url(f"{served.url}/openapi.json", headers=headers)
    routes = list(described.get_all_operations())
    assert len(routes) > 30
    there = served.client("ann").submit(SPEC).sweep_id
    for found in routes:

        @settings(max_examples=count // len(routes) + 1, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=found.ok().as_strategy(), known=st.booleans())
        def no_fault(case: schemathesis.Case, known: bool) -> None:
            if known and "sweep_id" in case.path_parameters:
                case.path_parameters["sweep_id"] = there
            case.query.pop("follow", None)  # of a sweep that waits, logs never come to their end
            answer = case.call(headers=headers, timeout=PATIENCE_S)
            assert answer.status_code < 500 or case.path == "/readyz", answer.text

        no_fault()


def send_specs(served: Served, count: int) -> None:
    """So many, each of which is to be accepted, or refused with its place."""
    headers = {"Authorization": f"Bearer {served.token('root', 'admin')}"}

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(spec=mutated())
    def accepted_or_placed(spec: str) -> None:
        sent = {"spec": spec}
        answer = httpx2.post(f"{served.url}/api/v1/plans", json=sent, headers=headers, timeout=PATIENCE_S)
        if answer.status_code == 200:
            return
        assert answer.status_code in (403, 422), answer.text
        if answer.status_code == 422:
            problem = answer.json()
            assert problem["code"] == "invalid_spec"
            assert all(line.startswith("spec.yaml") for line in problem["detail"].splitlines()), problem

    accepted_or_placed()


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """The spec with a few of its lines or values gone, doubled, or another."""
    text = SPEC
    for _ in range(draw(st.integers(1, 3))):
        lines = text.splitlines()
        at = draw(st.integers(0, len(lines) - 1))
        key, colon, value = lines[at].partition(":")
        how = draw(st.sampled_from(["drop", "twice", "key", "value", "cut", "part"]))
        changed = {
            "drop": [],
            "twice": [lines[at], lines[at]],
            "key": [f"{draw(st.text(max_size=8))}{colon}{value}"],
            "value": [f"{key}: {draw(st.sampled_from(JUNK) | st.text(max_size=12))}"],
            "cut": [lines[at][: draw(st.integers(0, len(lines[at])))]],
            "part": [
                lines[at].replace(
                    draw(st.sampled_from(["1", "{", "}", ",", "[", ":", "a"])), draw(st.sampled_from(JUNK)), 1
                )
            ],
        }[how]
        text = "\n".join([*lines[:at], *changed, *lines[at + 1 :], ""])
    return text
