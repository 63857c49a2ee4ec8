"""mirrors: how many records they cannot copy."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A mirror of an older service has left out none: it ended at such a record."""
    count = sa.Column("left_out", sa.BigInteger(), nullable=False, server_default="0")
    op.add_column("mirror_states", count)
    op.alter_column("mirror_states", "left_out", server_default=None)


def downgrade() -> None:
    """Forget it."""
    op.drop_column("mirror_states", "left_out")
