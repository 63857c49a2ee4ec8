"""search: one column with the texts that ?q= searches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

SEARCHED = "lower((((name)::text || ' '::text) || (description)::text))"


def upgrade() -> None:
    """Add the column: Postgres fills it."""
    op.add_column(
        "resources", sa.Column("search", sa.Text(), sa.Computed(SEARCHED, persisted=True))
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_column("resources", "search")
