"""The tokens that people and programs come in with, and under which key a sweep was submitted."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("token_id", _KEY, primary_key=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger()),
        sa.Column("used_ms", sa.BigInteger()),
        sa.Column("revoked_ms", sa.BigInteger()),
    )
    op.add_column("sweeps", sa.Column("submit_key", sa.Text()))
    op.create_index("sweeps_by_submit_key", "sweeps", ["owner", "submit_key"], unique=True)
