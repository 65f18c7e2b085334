"""For how long each trial held GPUs that were idle."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("trials", sa.Column("idle_gpu_ms", sa.BigInteger(), nullable=False, server_default="0"))
