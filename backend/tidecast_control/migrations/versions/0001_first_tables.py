"""first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _create_alerts() -> None:
    op.create_table(
        "alerts",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("rule", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("severity", sa.String(), nullable=False),
        sa.Column("metric", sa.String(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("threshold", sa.Float(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("silenced", sa.Boolean(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("resolved_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("delivery", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alerts")),
    )
    op.create_index(
        "ix_alerts_firing",
        "alerts",
        ["rule", "target"],
        unique=True,
        postgresql_where=sa.text("state = 'firing'"),
    )
    op.create_index(op.f("ix_alerts_started_at"), "alerts", ["started_at"], unique=False)


def _create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("actor_kind", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column(
            "before", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True
        ),
        sa.Column(
            "after", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True
        ),
        sa.Column("detail", sa.String(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_actor"), "audit", ["actor"], unique=False)
    op.create_index(op.f("ix_audit_at"), "audit", ["at"], unique=False)
    op.create_index("ix_audit_kind_name", "audit", ["kind", "name", "id"], unique=False)
    op.create_index(op.f("ix_audit_outcome"), "audit", ["outcome"], unique=False)


def _create_enrolments() -> None:
    op.create_table(
        "enrolments",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("uses", sa.Integer(), nullable=False),
        sa.Column("uses_max", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_enrolments")),
        sa.UniqueConstraint("digest", name=op.f("uq_enrolments_digest")),
        sa.UniqueConstraint("name", name=op.f("uq_enrolments_name")),
    )


def _create_idempotency() -> None:
    op.create_table(
        "idempotency",
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("body", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", "actor", name=op.f("pk_idempotency")),
    )
    op.create_index(op.f("ix_idempotency_created_at"), "idempotency", ["created_at"], unique=False)


def _create_keys() -> None:
    op.create_table(
        "keys",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("prefix", sa.String(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("scopes", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("description", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
        sa.UniqueConstraint("digest", name=op.f("uq_keys_digest")),
        sa.UniqueConstraint("name", name=op.f("uq_keys_name")),
    )


def _create_node_states() -> None:
    op.create_table(
        "node_states",
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("credential", sa.String(64), nullable=False),
        sa.Column("connected", sa.Boolean(), nullable=False),
        sa.Column("node_id", sa.Integer(), nullable=False),
        sa.Column("incarnation", sa.BigInteger(), nullable=False),
        sa.Column("software", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("applied_version", sa.BigInteger(), nullable=False),
        sa.Column("errors", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("restart_needed", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("unwired", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("connected_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_node_states")),
    )


def _create_operations() -> None:
    op.create_table(
        "operations",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("dry_run", sa.Boolean(), nullable=False),
        sa.Column("request", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("results", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("cli", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operations")),
    )
    op.create_index(op.f("ix_operations_created_at"), "operations", ["created_at"], unique=False)
    op.create_index(op.f("ix_operations_name"), "operations", ["name"], unique=False)


def _create_outbox() -> None:
    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("old", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
    )
    op.create_index(op.f("ix_outbox_at"), "outbox", ["at"], unique=False)
    op.create_index(op.f("ix_outbox_version"), "outbox", ["version"], unique=False)


def _create_resources() -> None:
    op.create_table(
        "resources",
        sa.Column("uid", sa.String(36), nullable=False),
        sa.Column("kind", sa.String(50), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("labels", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("description", sa.String(), nullable=False),
        sa.Column("deletion_protection", sa.Boolean(), nullable=False),
        sa.Column("managed_by", sa.String(), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("number", sa.Integer(), nullable=True),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_by", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_resources")),
        sa.UniqueConstraint("kind", "name", name=op.f("uq_resources_kind_name")),
    )
    op.create_index(
        "ix_resources_kind_created_at", "resources", ["kind", "created_at", "name"], unique=False
    )
    op.create_index("ix_resources_kind_number", "resources", ["kind", "number"], unique=False)
    op.create_index(
        "ix_resources_kind_updated_at", "resources", ["kind", "updated_at", "name"], unique=False
    )
    op.create_index(
        "ix_resources_labels", "resources", ["labels"], unique=False, postgresql_using="gin"
    )
    op.create_index("ix_resources_version", "resources", ["version"], unique=False)


def _create_topology_clock() -> None:
    op.create_table(
        "topology_clock",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("trimmed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_topology_clock")),
    )


def _create_users() -> None:
    op.create_table(
        "users",
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("password_hash", sa.String(), nullable=False),
        sa.Column("display_name", sa.String(), nullable=False),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("must_change_password", sa.Boolean(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("login_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_users")),
    )


def _create_sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("csrf", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["user"], ["users.name"], name=op.f("fk_sessions_user"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
    )
    op.create_index(op.f("ix_sessions_expires_at"), "sessions", ["expires_at"], unique=False)
    op.create_index(op.f("ix_sessions_user"), "sessions", ["user"], unique=False)


def upgrade() -> None:
    _create_alerts()
    _create_audit()
    _create_enrolments()
    _create_idempotency()
    _create_keys()
    _create_node_states()
    _create_operations()
    _create_outbox()
    _create_resources()
    _create_topology_clock()
    _create_users()
    _create_sessions()


def downgrade() -> None:
    op.drop_table("sessions")
    op.drop_table("users")
    op.drop_table("topology_clock")
    op.drop_table("resources")
    op.drop_table("outbox")
    op.drop_table("operations")
    op.drop_table("node_states")
    op.drop_table("keys")
    op.drop_table("idempotency")
    op.drop_table("enrolments")
    op.drop_table("audit")
    op.drop_table("alerts")
