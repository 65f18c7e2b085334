"""Shares of a GPU, the kind of GPU that a sweep's trials need, and how many GPUs each trial holds."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    with op.batch_alter_table("sweeps") as sweeps:  # SQLite changes a column's type in a copy of the table alone
        sweeps.alter_column("gpus", existing_type=sa.Integer(), type_=sa.Double(), existing_nullable=False)
        sweeps.add_column(sa.Column("accelerator", sa.Text()))
    op.add_column("trials", sa.Column("gpus", sa.Double()))
