"""sealed secrets: they are longer, and do not say which calls have the same URL."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make room. The service seals stored secrets when it starts: it has the key."""
    op.alter_column("wire_epochs", "secret", type_=sa.Text(), existing_nullable=False)
    target = sa.Column("target", sa.Text(), nullable=False, server_default="")
    op.add_column("webhook_deliveries", target)


def downgrade() -> None:
    """Sealed secrets are deleted: no older service can open them."""
    op.drop_column("webhook_deliveries", "target")
    op.execute("DELETE FROM wire_epochs WHERE secret LIKE 'sealed%'")
    op.execute("DELETE FROM webhook_secrets WHERE value LIKE 'sealed%'")
    op.execute("DELETE FROM webhook_deliveries WHERE url LIKE 'sealed%'")
    op.alter_column("wire_epochs", "secret", type_=sa.String(64), existing_nullable=False)
