"""Every table, for migrations: a module that is not imported has no tables."""

from __future__ import annotations

from tidecast_control.alerts.models import (
    AlertRow,
    DeliveryRow,
    PendingAlertRow,
    WebhookSecretRow,
)
from tidecast_control.audit.models import AuditRow
from tidecast_control.auth.models import KeyRow, SessionRow, UserRow
from tidecast_control.history.models import ROLLUP_APPLIED, ROLLUP_HOUR, ROLLUP_MINUTE
from tidecast_control.kit.models import IdempotencyRow, OutboxRow, ResourceRow, TopologyClock
from tidecast_control.leases.models import LeaseMoveRow, LeaseRow
from tidecast_control.mirrors.models import MirrorSecretRow, MirrorStateRow
from tidecast_control.nodes.models import ClusterRow, EnrolmentRow, NodeStateRow
from tidecast_control.operations.models import OperationRow
from tidecast_control.pipelines.models import PipelineLogRow, PipelineRunRow
from tidecast_control.wire_keys.models import WireEpochRow

TABLES = (
    AlertRow, AuditRow, ClusterRow, EnrolmentRow, IdempotencyRow, KeyRow, LeaseRow, NodeStateRow,
    OperationRow, OutboxRow, PipelineLogRow, PipelineRunRow, ResourceRow, SessionRow, TopologyClock,
    MirrorSecretRow, MirrorStateRow, LeaseMoveRow, UserRow, DeliveryRow,
    PendingAlertRow, WebhookSecretRow, WireEpochRow,
    ROLLUP_APPLIED, ROLLUP_HOUR, ROLLUP_MINUTE,
)  # fmt: skip
