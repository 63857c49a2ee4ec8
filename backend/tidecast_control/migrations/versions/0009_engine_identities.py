"""engine identities: credentials are rotated, enrolment tokens may be bound to a node."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Tokens of before are bound to no node, and replace none."""
    for table, column, length in (
        ("node_states", "credential_next", 64),
        ("enrolments", "node", 200),
    ):
        op.add_column(
            table, sa.Column(column, sa.String(length), nullable=False, server_default="")
        )
    op.add_column(
        "enrolments", sa.Column("replace", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    for table, column in (
        ("node_states", "credential_next"),
        ("enrolments", "node"),
        ("enrolments", "replace"),
    ):
        op.alter_column(table, column, server_default=None)


def downgrade() -> None:
    """A rotation that is under way ends with the credential of before."""
    op.drop_column("enrolments", "replace")
    op.drop_column("enrolments", "node")
    op.drop_column("node_states", "credential_next")
