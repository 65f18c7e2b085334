"""The queue, its trials, its events, who leads it, and what its users may use."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

# By code points, as SQLite and Python sort, whatever language the server was set up in.
_KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_COUNTER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "sweeps",
        sa.Column("sweep_id", _KEY, primary_key=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("ran", sa.Boolean(), nullable=False),
        sa.Column("queued_ms", sa.BigInteger(), nullable=False),
        sa.Column("started_ms", sa.BigInteger()),
        sa.Column("ended_ms", sa.BigInteger()),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("spec_version", sa.Integer(), nullable=False),
        sa.Column("spec_text", sa.Text(), nullable=False),
        sa.Column("cpus", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("workers", sa.Integer(), nullable=False),
        sa.Column("most_trials", sa.Integer()),
        sa.Column("submitted_ms", sa.BigInteger(), nullable=False),
        sa.Column("waits_for", sa.Text(), nullable=False),
        sa.Column("gpu_ms", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
    )
    op.create_index("sweeps_by_age", "sweeps", ["submitted_ms", "sweep_id"])
    op.create_index("sweeps_by_state", "sweeps", ["state"])
    op.create_index("sweeps_by_owner", "sweeps", ["owner"])
    op.create_table(
        "trials",
        sa.Column("sweep_id", _KEY, primary_key=True),
        sa.Column("trial", _KEY, primary_key=True),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("variant", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("rung", sa.Integer()),
        sa.Column("share", sa.Double(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("score", sa.Double()),
        sa.Column("point", sa.Text(), nullable=False),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger()),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("trained_ms", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "events",
        sa.Column("id", _COUNTER, primary_key=True),
        sa.Column("sweep_id", _KEY),
        sa.Column("time_ms", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("before", sa.Text(), nullable=False),
        sa.Column("after", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
    )
    op.create_index("events_by_sweep", "events", ["sweep_id", "id"])
    queue = op.create_table(
        "queue",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("lead_holder", sa.Text(), nullable=False),
        sa.Column("lead_token", sa.Text(), nullable=False),
        sa.Column("lead_beat", sa.BigInteger(), nullable=False),
        sa.Column("pause_reason", sa.Text()),
        sa.Column("pause_ms", sa.BigInteger()),
        sa.Column("pause_by", sa.Text()),
    )
    op.bulk_insert(queue, [{"id": 1, "lead_holder": "", "lead_token": "", "lead_beat": 0}])
    op.create_table(
        "limits",
        sa.Column("owner", _KEY, primary_key=True),
        sa.Column("sweeps", sa.Integer()),
        sa.Column("gpus", sa.Integer()),
        sa.Column("gpu_hours", sa.Double()),
    )
