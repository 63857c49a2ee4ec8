"""The service's report on itself."""

from __future__ import annotations

from importlib.util import find_spec

from sqlalchemy.exc import SQLAlchemyError

import tidecast
from tidecast.config.topology import default_data_dir
from tidecast_control.context import Context
from tidecast_control.kit.models import utc_now
from tidecast_control.system.schemas import Health, SystemInfo

_FACTS = """
SELECT coalesce((SELECT version FROM topology_clock WHERE id = 1), 0),
count(*) = 1 AND bool_and(must_change_password) FROM users"""


async def info(ctx: Context) -> SystemInfo:
    """Version, time, settings that a client should know."""
    version, first_run = (await ctx.db.statements.rows(_FACTS))[0]
    now, data_dir = utc_now(), ctx.settings.data_dir
    return SystemInfo(
        version=tidecast.__version__,
        started_at=ctx.started_at,
        now=now,
        uptime_s=(now - ctx.started_at).total_seconds(),
        topology_version=version,
        first_run=first_run,
        faults_allowed=ctx.settings.allow_faults,
        telemetry_hz_max=ctx.settings.telemetry_hz,
        postgres="external" if ctx.settings.database_url is not None else "embedded",
        nodes_up=len(ctx.hub.connected()),
        watchers=ctx.feed.watchers,
        spark=find_spec("pyspark") is not None,
        data_dir="" if data_dir == default_data_dir() else str(data_dir),
    )


def ready(ctx: Context) -> Health:
    """Postgres answers and each background task works; how many engines there are is no check."""
    checks = {"process": "ok"}
    try:
        ctx.db.ping()
        checks["postgres"] = "ok"
    except SQLAlchemyError:
        checks["postgres"] = "no answer"
    checks |= {f"task {name}": check for name, check in ctx.supervisor.checks().items()}
    ok = all(value == "ok" for value in checks.values())
    return Health(ok=ok, checks=checks, detail={"nodes_up": len(ctx.hub.connected())})
