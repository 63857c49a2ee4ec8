"""runs of pipelines: a lease of the service that has the process, and a request to end it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A run of an older service has no lease: its service has ended."""
    at = sa.DateTime(timezone=True)
    op.add_column("pipeline_runs", sa.Column("held_until", at, nullable=True))
    op.add_column(
        "pipeline_runs",
        sa.Column("ending", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.alter_column("pipeline_runs", "ending", server_default=None)


def downgrade() -> None:
    """Forget them."""
    op.drop_column("pipeline_runs", "ending")
    op.drop_column("pipeline_runs", "held_until")
