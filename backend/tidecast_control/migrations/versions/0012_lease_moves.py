"""lease moves: which leased queue went from which node to which, and why."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table. Moves of before are not known."""
    at = sa.DateTime(timezone=True)
    op.create_table(
        "lease_moves",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        sa.Column("queue", sa.String(300), nullable=False),
        sa.Column("topic", sa.String(300), nullable=False),
        sa.Column("at", at, nullable=False),
        sa.Column("taken_at", at, nullable=True),
        sa.Column("from_node", sa.String(200), nullable=False),
        sa.Column("to_node", sa.String(200), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
    )
    op.create_index("ix_lease_moves_at", "lease_moves", ["at"])
    op.create_index("ix_lease_moves_topic", "lease_moves", ["topic", "id"])
    op.create_index(
        "ix_lease_moves_open",
        "lease_moves",
        ["queue"],
        unique=True,
        postgresql_where=sa.text("to_node = ''"),
    )


def downgrade() -> None:
    """Moves are forgotten; leases stay."""
    op.drop_table("lease_moves")
