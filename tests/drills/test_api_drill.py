"""Thousands of requests to the service, over both kinds of database, and none is answered with a fault of ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from any_requests import send_requests, send_specs
from postgres import Postgres
from service import Served, serving

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home, ray = tmp_path_factory.mktemp("service") / ".tuneyard", "http://127.0.0.1:9"
    if request.param == "sqlite":
        with serving(home, TUNEYARD_RAY=ray) as found:
            yield found
        return
    postgres = Postgres()
    try:
        with serving(home, TUNEYARD_RAY=ray, TUNEYARD_DATABASE=postgres.url()) as found:
            yield found
    finally:
        postgres.stop()


def test_no_request_is_answered_with_a_fault_of_ours(served: Served) -> None:
    send_requests(served, 5_000)


def test_a_mutated_spec_is_accepted_or_refused_with_its_place(served: Served) -> None:
    send_specs(served, 1_000)
