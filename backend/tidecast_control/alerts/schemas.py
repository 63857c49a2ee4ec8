"""Alert rules, alerts, silences."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from tidecast_control.alerts.webhook_address import checked_address, checked_secret
from tidecast_control.kit.schemas import (
    Count,
    Instant,
    Model,
    Resource,
    ResourceInput,
    Short,
    Status,
    View,
)

Metric = Literal[
    "lag_messages",
    "lag_s",
    "retransmit_ratio",
    "ring_fill",
    "cache_fill",
    "lost_packets_per_s",
    "packets_out_per_s",
    "bytes_out_per_s",
    "rate_held",
    "flow_held",
    "node_down",
    "drift",
    "forged_packets_per_s",
    "waiting",
    "silent_peers",
    "mirror_failed",
    "mirror_lag",
]
Webhook = Annotated[str, Field(max_length=2000), AfterValidator(checked_address)]
WebhookSecret = Annotated[str, Field(max_length=200), AfterValidator(checked_secret)]
WRITE_ONLY = "Write-only: it is shown masked; the masked value keeps the stored secret"


class AlertRuleSpec(Model):
    """Fires when ``metric`` of anything that matches ``target`` compares true for ``for_s``."""

    metric: Metric
    target: Short = Field(
        ">",
        description="Name or pattern of topic, subscription, node or mirror; a Kafka group is "
        "`kafka:NAME`",
    )
    comparison: Literal["above", "below"] = "above"
    threshold: float = Field(0.0, ge=-1e18, le=1e18)
    for_s: float = Field(10.0, ge=0, le=86_400)
    severity: Literal["info", "warning", "critical"] = "warning"
    webhook: Webhook = Field(
        "", description=f"POSTed to when it fires and when it resolves. {WRITE_ONLY}"
    )
    webhook_secret: WebhookSecret = Field(
        "", description=f"Key that signs the calls, `whsec_...` (standardwebhooks). {WRITE_ONLY}"
    )
    enabled: bool = True


class AlertRuleStatus(Status):
    """The state of a rule."""

    firing: Count = 0
    evaluated_at: datetime | None = None
    error: str = ""


class AlertRule(Resource[AlertRuleSpec, AlertRuleStatus]):
    """An alert rule."""


class AlertRuleInput(ResourceInput[AlertRuleSpec]):
    """The desired state of an alert rule."""


class SilenceSpec(Model):
    """Alerts that match are not sent until ``until``."""

    rule: Short = Field("", description='"" = all rules')
    target: Short = Field(">", description="Name or pattern")
    until: Instant
    reason: Short = ""


class SilenceStatus(Status):
    """Whether a silence holds."""

    active: bool = False


class Silence(Resource[SilenceSpec, SilenceStatus]):
    """A silence."""


class SilenceInput(ResourceInput[SilenceSpec]):
    """The desired state of a silence."""


class Alert(View):
    """One alert: a rule that fired for one target."""

    id: str
    rule: str
    target: str
    severity: Literal["info", "warning", "critical"]
    metric: str
    value: float | None
    threshold: float
    state: Literal["firing", "resolved"]
    silenced: bool
    no_data: bool = Field(
        False, description="A node of the alert is not heard: the state is the last known one"
    )
    started_at: datetime
    resolved_at: datetime | None = None
    delivery: str = Field("", description="The last answer of the webhook")
