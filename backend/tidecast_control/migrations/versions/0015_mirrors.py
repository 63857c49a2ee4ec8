"""mirrors: how each does, and its sealed secrets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    at = sa.DateTime(timezone=True)
    op.create_table(
        "mirror_states",
        sa.Column("mirror", sa.String(200), primary_key=True),
        sa.Column("holder", sa.String(36), nullable=False),
        sa.Column("held_until", at, nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("started_at", at, nullable=True),
        sa.Column("updated_at", at, nullable=True),
        sa.Column("retry_at", at, nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("error_at", at, nullable=True),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("failures", "records", "bytes", "repeated", "gone", "retries")
        ),
        sa.Column("rate", sa.Float(), nullable=False),
        sa.Column("lag", sa.BigInteger(), nullable=False),
        sa.Column("queues", JSONB(), nullable=False),
        sa.Column("events", JSONB(), nullable=False),
    )
    op.create_table(
        "mirror_secrets",
        sa.Column("mirror", sa.String(200), primary_key=True),
        sa.Column("field", sa.String(20), primary_key=True),
        sa.Column("shown", sa.String(40), nullable=False),
        sa.Column("bound", sa.String(64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    """Positions stay: they are in the logs, and in files beside them."""
    op.drop_table("mirror_secrets")
    op.drop_table("mirror_states")
    op.execute("DELETE FROM resources WHERE kind = 'mirror'")
