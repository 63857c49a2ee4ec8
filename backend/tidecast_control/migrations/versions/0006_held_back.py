"""held back: alert rules about limits watch a share of the time, not how often in a second."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

RENAMED = {"rate_limited_per_s": "rate_held", "flow_limited_per_s": "flow_held"}
CHANGE = sa.text(
    "UPDATE resources SET spec = spec || jsonb_build_object("
    "'metric', CAST(:new AS text), 'threshold', CAST(:threshold AS float)) "
    "WHERE kind = 'alert_rule' AND spec->>'metric' = :old"
)


def upgrade() -> None:
    """A count a second says nothing of a share: such rules begin with half of the time."""
    for old, new in RENAMED.items():
        op.get_bind().execute(CHANGE, {"old": old, "new": new, "threshold": 0.5})


def downgrade() -> None:
    """Undo it; with the threshold that the page proposed."""
    for old, new in RENAMED.items():
        op.get_bind().execute(CHANGE, {"old": new, "new": old, "threshold": 100})
