"""Alerts keep their state; webhooks are called from an outbox, and their URLs are write-only."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

MASKED = (
    "substring({0} from '^[A-Za-z]+://[^/?#]+') || '/********-' "
    "|| left(encode(sha256(convert_to({0}, 'UTF8')), 'hex'), 12)"
)
"""As `webhook_address.masked` does."""
URL = "spec->>'webhook'"
RULES = f"kind = 'alert_rule' AND coalesce({URL}, '') <> ''"


def _instant(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False)


def upgrade() -> None:
    """Move the URLs of webhooks out of the specs, and out of the audit."""
    op.add_column(
        "alerts", sa.Column("no_data", sa.Boolean(), server_default="false", nullable=False)
    )
    op.add_column(
        "alerts",
        sa.Column("nodes", postgresql.JSONB(), server_default="[]", nullable=False),
    )
    op.create_table(
        "alerts_pending",
        sa.Column("rule", sa.String(200), nullable=False),
        sa.Column("target", sa.String(300), nullable=False),
        _instant("since"),
        sa.Column("nodes", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("rule", "target", name=op.f("pk_alerts_pending")),
    )
    op.create_table(
        "webhook_secrets",
        sa.Column("rule", sa.String(200), nullable=False),
        sa.Column("masked", sa.String(2100), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("rule", "masked", name=op.f("pk_webhook_secrets")),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("alert", sa.String(36), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        _instant("created_at"),
        _instant("next_at"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
    )
    op.create_index(op.f("ix_webhook_deliveries_next_at"), "webhook_deliveries", ["next_at"])
    op.execute(
        "INSERT INTO webhook_secrets (rule, masked, value) "
        f"SELECT name, {MASKED.format(URL)}, {URL} FROM resources WHERE {RULES}"
    )
    op.execute(
        "UPDATE resources SET spec = jsonb_set(spec, '{webhook}', "
        f"to_jsonb({MASKED.format(URL)})) WHERE {RULES}"
    )
    for column in ("before", "after"):
        url = f"{column}->'spec'->>'webhook'"
        op.execute(
            f"UPDATE audit SET {column} = jsonb_set({column}, '{{spec,webhook}}', "
            f"to_jsonb({MASKED.format(url)})) "
            f"WHERE kind = 'alert_rule' AND coalesce({url}, '') <> ''"
        )


def downgrade() -> None:
    """Put the URLs back into the specs; the audit keeps them masked."""
    op.execute(
        "UPDATE resources SET spec = jsonb_set(spec - 'webhook_secret', '{webhook}', "
        "to_jsonb(value)) FROM webhook_secrets "
        f"WHERE {RULES} AND rule = name AND masked = {URL}"
    )
    op.execute("UPDATE resources SET spec = spec - 'webhook_secret' WHERE kind = 'alert_rule'")
    op.drop_table("webhook_deliveries")
    op.drop_table("webhook_secrets")
    op.drop_table("alerts_pending")
    op.drop_column("alerts", "nodes")
    op.drop_column("alerts", "no_data")
