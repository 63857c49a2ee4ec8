"""The topology's line about telemetry."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MIB = 1 << 20


class TelemetryConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """History of an engine's counters, in its durable topic `tidecast.telemetry`.

    ``interval_s`` 0: none; None: as the command that starts the engine has it (`tidecast up`: 10).
    """

    interval_s: Annotated[float, Meta(ge=0, le=3600)] | None = None
    retention_bytes: Annotated[int, Meta(ge=4 * MIB, le=1 << 53)] = 256 * MIB
    retention_s: Annotated[float, Meta(ge=60, le=1e10)] = 604_800.0
