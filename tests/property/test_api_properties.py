"""Whatever is sent, the service answers, and never with a fault of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import schemathesis
from driven_sweep import SPEC
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.schemas import BaseSchema
from service import Served, serving
from waiting import PATIENCE_S

REQUESTS = 300
SPECS = 300
ROUTES = 32
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


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("service") / ".tuneyard"
    with serving(home, TUNEYARD_RAY="http://127.0.0.1:9") as found:
        yield found


@pytest.fixture(scope="module")
def described(served: Served) -> BaseSchema:
    headers = {"Authorization": f"Bearer {served.token('root', 'admin')}"}
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json", headers=headers)
    assert sum(1 for _ in schema.get_all_operations()) == ROUTES
    return schema


def test_no_request_is_answered_with_a_fault_of_ours(described: BaseSchema, served: Served, token: str) -> None:
    """Half of the requests that are about a sweep are about one that there is."""
    there = served.client("ann").submit(SPEC).sweep_id
    for found in described.get_all_operations():
        operation = found.ok()

        @settings(max_examples=REQUESTS // ROUTES + 1, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(), known=st.booleans())
        def no_fault(case: schemathesis.Case, known: bool) -> None:
            if known and "sweep_id" in case.path_parameters:
                case.path_parameters["sweep_id"] = there
            case.query.pop("follow", None)  # of a sweep that waits, logs never come to their end
            answer = case.call(headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_S)
            assert answer.status_code < 500 or case.path == "/readyz", answer.text

        no_fault()


@pytest.fixture(scope="module")
def token(served: Served) -> str:
    return served.token("root", "admin")


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


@settings(max_examples=SPECS, deadline=None, suppress_health_check=list(HealthCheck))
@given(spec=mutated())
def test_a_mutated_spec_is_accepted_or_refused_with_its_place(served: Served, token: str, spec: str) -> None:
    sent: dict[str, Any] = {"spec": spec}
    answer = httpx2.post(
        f"{served.url}/api/v1/plans", json=sent, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_S
    )
    if answer.status_code == 200:
        return
    assert answer.status_code in (403, 422), answer.text
    if answer.status_code == 422:
        problem = answer.json()
        assert problem["code"] == "invalid_spec"
        assert all(line.startswith("spec.yaml") for line in problem["detail"].splitlines()), problem
