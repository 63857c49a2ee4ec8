"""Schemas of the service's report on itself."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from tidecast_control.kit.schemas import Count, Int64, View


class SystemInfo(View):
    """Version and the settings a client should know."""

    version: str
    api: Literal["v1"] = "v1"
    started_at: datetime
    now: datetime
    uptime_s: float
    topology_version: Int64
    first_run: bool
    faults_allowed: bool
    telemetry_hz_max: float
    postgres: str
    nodes_up: Count
    watchers: Count
    spark: bool = Field(True, description="PySpark is installed: pipelines can run here")
    data_dir: str = Field(
        "", description='Where commands on its host find its engine; "" = the default'
    )


class ProblemKind(View):
    """One entry of the problem catalogue."""

    code: str
    status: Count
    title: str
    meaning: str
    mend: str
    retryable: bool


class Health(View):
    """Health of the service, check by check."""

    ok: bool
    checks: dict[str, str]
    detail: dict[str, Any] = {}
