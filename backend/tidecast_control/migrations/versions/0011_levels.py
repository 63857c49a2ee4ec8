"""levels: the cluster's level, and the levels that each engine reads."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

COLUMNS = ("level", "level_min", "level_max")


def upgrade() -> None:
    """Engines of before read level 1, and a platform that has some is at level 1."""
    for column in COLUMNS:
        op.add_column(
            "node_states", sa.Column(column, sa.Integer(), nullable=False, server_default="1")
        )
        op.alter_column("node_states", column, server_default=None)
    op.add_column(
        "node_states", sa.Column("refused", sa.String(), nullable=False, server_default="")
    )
    op.alter_column("node_states", "refused", server_default=None)
    op.create_table(
        "cluster",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("finalized_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finalized_by", sa.String(), nullable=False),
    )
    op.execute(
        "INSERT INTO cluster (id, level, finalized_by) "
        "SELECT 1, 1, '' WHERE EXISTS (SELECT 1 FROM node_states)"
    )


def downgrade() -> None:
    """A service of before knows no level; it reads level 1 alone."""
    op.drop_table("cluster")
    for column in (*COLUMNS, "refused"):
        op.drop_column("node_states", column)
