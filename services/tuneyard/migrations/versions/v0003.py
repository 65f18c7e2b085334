"""Webhooks, what is owed to them and what came of each try; and since when a trial trains, for what users have used."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("trials", sa.Column("since_ms", sa.BigInteger()))
    op.create_table(
        "webhooks",
        sa.Column("hook_id", _KEY, primary_key=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", sa.Text(), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger()),
        sa.Column("ended_why", sa.Text(), nullable=False),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("delivery_id", _KEY, primary_key=True),
        sa.Column("hook_id", _KEY, nullable=False),
        sa.Column("event_id", sa.BigInteger()),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("next_ms", sa.BigInteger()),
        sa.Column("delivered_ms", sa.BigInteger()),
    )
    op.create_index("webhook_deliveries_by_hook", "webhook_deliveries", ["hook_id", "created_ms"])
    op.create_index("webhook_deliveries_by_time", "webhook_deliveries", ["next_ms"])
    op.create_table(
        "webhook_tries",
        sa.Column("delivery_id", _KEY, primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("time_ms", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Integer()),
        sa.Column("error", sa.Text(), nullable=False),
    )
