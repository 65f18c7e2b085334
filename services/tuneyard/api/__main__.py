"""`python -m tuneyard.api`: serves the home's queue at TUNEYARD_LISTEN until SIGINT or SIGTERM."""

from __future__ import annotations

import logging
import sys

import uvicorn

from tuneyard import settings
from tuneyard.api import create_app
from tuneyard.api.service import Service
from tuneyard_pipelines.errors import InputError, TuneyardError

SWITCH_S = 0.0005
"""So soon a thread that plans a sweep gives way to one that only answers; Python's own is ten times as long."""


def main() -> None:
    """Exit 2 for settings that are wrong, 3 for a database that does not answer."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    sys.setswitchinterval(SWITCH_S)
    try:
        host, port = _place(settings.value("TUNEYARD_LISTEN"))
        app = create_app(Service.configured())
    except TuneyardError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    # A proxy's word on who asks is taken only by `TrustedHeader`, which looks at who really connects.
    uvicorn.run(app, host=host, port=port, proxy_headers=False, log_config=None, timeout_graceful_shutdown=5)


def _place(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"TUNEYARD_LISTEN: found {listen!r}; allowed: HOST:PORT, as in 127.0.0.1:8700")
    return host.strip("[]"), int(port)


if __name__ == "__main__":
    main()
