"""One name: settings of subscriptions are called as everywhere else; live topics keep no queues."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

RENAMED = {"deliver_max": "max_deliver", "in_flight_max": "max_in_flight"}
RENAME = sa.text(
    "UPDATE resources SET spec = (spec - CAST(:old AS text)) "
    "|| jsonb_build_object(CAST(:new AS text), spec->CAST(:old AS text)) "
    "WHERE kind = 'subscription' AND jsonb_exists(spec, CAST(:old AS text))"
)
DEFAULTS = """{"queues": 1, "fsync": "interval", "fsync_interval_ms": 50.0,
 "segment_bytes": 134217728, "retention_bytes": 0, "retention_s": 0.0,
 "retention_past_unacked": false, "cache_bytes": 16777216, "producer_ttl_s": 604800.0}"""
LIVE = sa.text(
    "UPDATE resources SET spec = spec || CAST(:defaults AS jsonb) "
    "WHERE kind = 'topic' AND spec->>'mode' = 'live'"
)


def upgrade() -> None:
    """Settings without a meaning for live topics are reset: others are refused from now on."""
    for old, new in RENAMED.items():
        op.get_bind().execute(RENAME, {"old": old, "new": new})
    op.get_bind().execute(LIVE, {"defaults": DEFAULTS})


def downgrade() -> None:
    """The names before."""
    for old, new in RENAMED.items():
        op.get_bind().execute(RENAME, {"old": new, "new": old})
