"""The queue's tables as `store` uses them; `migrations/` makes them, and a test holds the two together."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa


class _Words(sa.types.TypeDecorator[str]):
    """Text as it comes: what no database can hold, such as a NUL in a crash's message, becomes a question mark."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else value.replace("\0", "?").encode(errors="replace").decode()


def _column(name: str, kind: type[sa.types.TypeEngine[Any]], **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, **options)


METADATA = sa.MetaData()
_COUNTER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


SWEEPS = sa.Table(
    "sweeps",
    METADATA,
    sa.Column("sweep_id", _Words, primary_key=True),
    _column("state", _Words),
    _column("reason", _Words),
    _column("message", _Words),
    _column("attempt", sa.Integer),
    _column("losses", sa.Integer),
    _column("ran", sa.Boolean),
    _column("queued_ms", sa.BigInteger),
    sa.Column("started_ms", sa.BigInteger),
    sa.Column("ended_ms", sa.BigInteger),
    _column("name", _Words),
    _column("owner", _Words),
    _column("priority", sa.Integer),
    _column("spec_version", sa.Integer),
    _column("spec_text", _Words),
    _column("cpus", sa.Integer),
    _column("gpus", sa.Double),
    _column("memory_bytes", sa.BigInteger),
    _column("workers", sa.Integer),
    sa.Column("accelerator", _Words),
    sa.Column("most_trials", sa.Integer),
    _column("submitted_ms", sa.BigInteger),
    _column("waits_for", _Words),
    _column("gpu_ms", sa.BigInteger),
    _column("revision", sa.Integer),
    sa.Column("submit_key", _Words),
    sa.Index("sweeps_by_age", "submitted_ms", "sweep_id"),
    sa.Index("sweeps_by_state", "state"),
    sa.Index("sweeps_by_owner", "owner"),
    sa.Index("sweeps_by_submit_key", "owner", "submit_key", unique=True),
)
TRIALS = sa.Table(
    "trials",
    METADATA,
    sa.Column("sweep_id", _Words, primary_key=True),
    sa.Column("trial", _Words, primary_key=True),
    _column("number", sa.Integer),
    _column("name", _Words),
    _column("variant", _Words),
    _column("state", _Words),
    sa.Column("rung", sa.Integer),
    _column("share", sa.Double),
    _column("tokens", sa.BigInteger),
    sa.Column("score", sa.Double),
    _column("point", _Words),  # JSON, which no query looks into; a database's own JSON knows no NaN
    _column("metrics", _Words),
    _column("created_ms", sa.BigInteger),
    sa.Column("ended_ms", sa.BigInteger),
    _column("message", _Words),
    _column("trained_ms", sa.BigInteger),
    sa.Column("since_ms", sa.BigInteger),
    sa.Column("gpus", sa.Double),
    _column("idle_gpu_ms", sa.BigInteger, server_default="0"),
)
EVENTS = sa.Table(
    "events",
    METADATA,
    sa.Column("id", _COUNTER, primary_key=True),
    sa.Column("sweep_id", _Words),
    _column("time_ms", sa.BigInteger),
    _column("actor", _Words),
    _column("what", _Words),
    _column("before", _Words),
    _column("after", _Words),
    _column("reason", _Words),
    _column("message", _Words),
    sa.Index("events_by_sweep", "sweep_id", "id"),
)
QUEUE = sa.Table(  # one row
    "queue",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    _column("lead_holder", _Words),
    _column("lead_token", _Words),
    _column("lead_beat", sa.BigInteger),
    sa.Column("pause_reason", _Words),
    sa.Column("pause_ms", sa.BigInteger),
    sa.Column("pause_by", _Words),
)
LIMITS = sa.Table(
    "limits",
    METADATA,
    sa.Column("owner", _Words, primary_key=True),
    sa.Column("sweeps", sa.Integer),
    sa.Column("gpus", sa.Integer),
    sa.Column("gpu_hours", sa.Double),
)
TOKENS = sa.Table(
    "tokens",
    METADATA,
    sa.Column("token_id", _Words, primary_key=True),
    _column("name", _Words),
    _column("role", _Words),
    _column("digest", _Words),
    _column("created_ms", sa.BigInteger),
    _column("created_by", _Words),
    sa.Column("expires_ms", sa.BigInteger),
    sa.Column("used_ms", sa.BigInteger),
    sa.Column("revoked_ms", sa.BigInteger),
)
WEBHOOKS = sa.Table(
    "webhooks",
    METADATA,
    sa.Column("hook_id", _Words, primary_key=True),
    _column("url", _Words),
    _column("events", _Words),  # JSON
    _column("format", _Words),
    _column("secret", _Words),  # as it is: it signs
    _column("created_ms", sa.BigInteger),
    _column("created_by", _Words),
    _column("event_id", sa.BigInteger),
    sa.Column("ended_ms", sa.BigInteger),
    _column("ended_why", _Words),
)
DELIVERIES = sa.Table(
    "webhook_deliveries",
    METADATA,
    sa.Column("delivery_id", _Words, primary_key=True),
    _column("hook_id", _Words),
    sa.Column("event_id", sa.BigInteger),
    _column("event", _Words),
    _column("body", _Words),
    _column("created_ms", sa.BigInteger),
    _column("tries", sa.Integer),
    sa.Column("next_ms", sa.BigInteger),
    sa.Column("delivered_ms", sa.BigInteger),
    sa.Index("webhook_deliveries_by_hook", "hook_id", "created_ms"),
    sa.Index("webhook_deliveries_by_time", "next_ms"),
)
TRIES = sa.Table(
    "webhook_tries",
    METADATA,
    sa.Column("delivery_id", _Words, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    _column("time_ms", sa.BigInteger),
    sa.Column("status", sa.Integer),
    _column("error", _Words),
)
