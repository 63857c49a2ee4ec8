"""addresses: where other nodes reach the unicast transports of each engine."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Engines announce theirs when they connect."""
    op.add_column(
        "node_states", sa.Column("addresses", JSONB(), nullable=False, server_default="{}")
    )


def downgrade() -> None:
    """A service of before names no peers: engines keep the last list."""
    op.drop_column("node_states", "addresses")
