"""history and pipelines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COUNTS = (
    "samples",
    "messages_in",
    "bytes_in",
    "messages_out",
    "bytes_out",
    "packets",
    "resent",
    "lag_p50",
    "lag_p95",
    "lag_p99",
    "lag_max",
    "lag_ms_max",
)
RATIOS = ("retransmit_ratio", "cache_fill", "cache_fill_max", "in_per_s", "out_per_s", "drain_s")


def _create_rollup(name: str) -> None:
    """May be there: the job `rollup` made the same table until migrations alone did."""
    op.create_table(
        name,
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("queue", sa.Integer(), nullable=False),
        sa.Column("subscription", sa.Text(), nullable=False),
        *(sa.Column(count, sa.BigInteger(), nullable=True) for count in COUNTS),
        *(sa.Column(ratio, sa.Float(53), nullable=True) for ratio in RATIOS),
        sa.PrimaryKeyConstraint(
            "at", "node", "topic", "queue", "subscription", name=op.f(f"pk_{name}")
        ),
        if_not_exists=True,
    )
    for first in ("topic", "subscription"):
        op.create_index(f"ix_{name}_{first}_at", name, [first, "at"], if_not_exists=True)


def _create_runs() -> None:
    op.create_table(
        "pipeline_runs",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("pipeline", sa.String(200), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("trigger", sa.String(), nullable=False),
        sa.Column("requested_by", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("cli", sa.String(), nullable=False),
        sa.Column("queued_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("pid_start", sa.BigInteger(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.String(), nullable=False),
        sa.Column(
            "report", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pipeline_runs")),
    )
    op.create_index(
        "ix_pipeline_runs_pipeline_queued_at", "pipeline_runs", ["pipeline", "queued_at"]
    )
    op.create_index(
        "ix_pipeline_runs_open",
        "pipeline_runs",
        ["pipeline"],
        unique=True,
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    )
    op.create_table(
        "pipeline_logs",
        sa.Column("run", sa.String(36), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run", name=op.f("pk_pipeline_logs")),
    )


def upgrade() -> None:
    """Make the tables."""
    for name in ("rollup_minute", "rollup_hour"):
        _create_rollup(name)
    op.create_table(
        "rollup_applied",
        sa.Column("query", sa.Text(), nullable=False),
        sa.Column("batch", sa.BigInteger(), nullable=False),
        sa.Column(
            "applied", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("query", "batch", name=op.f("pk_rollup_applied")),
        if_not_exists=True,
    )
    _create_runs()


def downgrade() -> None:
    """Drop them."""
    for name in (
        "pipeline_logs",
        "pipeline_runs",
        "rollup_applied",
        "rollup_hour",
        "rollup_minute",
    ):
        op.drop_table(name)
