"""wire epochs: the secrets of sealed transports."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """No transport has a secret yet."""
    at = sa.DateTime(timezone=True)
    op.create_table(
        "wire_epochs",
        sa.Column("transport", sa.String(200), primary_key=True),
        sa.Column("epoch", sa.BigInteger(), primary_key=True),
        sa.Column("secret", sa.String(64), nullable=False),
        sa.Column("created_at", at, nullable=False),
        sa.Column("activate_at", at, nullable=False),
        sa.Column("retire_at", at, nullable=True),
    )


def downgrade() -> None:
    """Engines keep the secrets that they have."""
    op.drop_table("wire_epochs")
