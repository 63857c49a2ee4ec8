"""All kinds of resources, in the order in which they may refer to each other."""

from __future__ import annotations

from tidecast_control.alerts.service import RULES, SILENCES
from tidecast_control.faults.service import KIND as FAULT
from tidecast_control.kit.kind import Kind
from tidecast_control.mirrors.service import KIND as MIRROR
from tidecast_control.nodes.service import KIND as NODE
from tidecast_control.pipelines.service import KIND as PIPELINE
from tidecast_control.rate_limits.service import KIND as RATE_LIMIT
from tidecast_control.subscriptions.service import KIND as SUBSCRIPTION
from tidecast_control.topics.service import KIND as TOPIC
from tidecast_control.traffic.service import KIND as TRAFFIC
from tidecast_control.transports.service import KIND as TRANSPORT

_ALL: tuple[Kind, ...] = (
    TRANSPORT,
    TOPIC,
    RATE_LIMIT,
    SUBSCRIPTION,
    TRAFFIC,
    FAULT,
    RULES,
    SILENCES,
    PIPELINE,
    MIRROR,
    NODE,
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in sorted(_ALL, key=lambda k: k.order)}
