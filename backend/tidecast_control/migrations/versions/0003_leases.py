"""leases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "leases",
        sa.Column("queue", sa.String(300), nullable=False),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("queue", name=op.f("pk_leases")),
    )


def downgrade() -> None:
    """Drop it. Logs keep their epochs: engines ask for higher ones."""
    op.drop_table("leases")
