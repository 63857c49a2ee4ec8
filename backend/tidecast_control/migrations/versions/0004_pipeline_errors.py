"""pipeline errors."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Runs say how many rows they left out."""
    op.add_column("pipeline_runs", sa.Column("errors", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Forget it."""
    op.drop_column("pipeline_runs", "errors")
