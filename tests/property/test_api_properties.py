"""Whatever is sent, the service answers, and never with a fault of its own; the drills send far more of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from any_requests import send_requests, send_specs
from service import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("service") / ".tuneyard"
    with serving(home, TUNEYARD_RAY="http://127.0.0.1:9") as found:
        yield found


def test_no_request_is_answered_with_a_fault_of_ours(served: Served) -> None:
    send_requests(served, 300)


def test_a_mutated_spec_is_accepted_or_refused_with_its_place(served: Served) -> None:
    send_specs(served, 300)
