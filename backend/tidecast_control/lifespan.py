"""Starting and stopping the service: Postgres, migrations, first run, background work."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta

import psycopg
from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import SQLAlchemyError

from tidecast_control import first_run
from tidecast_control.alerts.evaluate import Evaluator
from tidecast_control.audit import service as audit
from tidecast_control.auth import repository as accounts
from tidecast_control.context import Context
from tidecast_control.db import Database
from tidecast_control.faults import service as faults
from tidecast_control.kit import repository
from tidecast_control.kit.models import utc_now
from tidecast_control.link.hub import Hub
from tidecast_control.live.feed import Feed
from tidecast_control.nodes import repository as nodes
from tidecast_control.nodes import service as enrolments
from tidecast_control.pipelines.jobs import Place
from tidecast_control.pipelines.runner import Runner
from tidecast_control.postgres import EmbeddedPostgres
from tidecast_control.settings import Settings

log = logging.getLogger("tidecast.control")

MAINTENANCE_S, HOUSEKEEPING_EVERY = 1.0, 600
OUTBOX_HOURS, OUTBOX_KEPT = 24, 10_000
IDEMPOTENCY_HOURS, ALERT_DAYS = 24, 90
LISTEN_RETRY_S = 1.0

OnStart = Callable[[Context, first_run.Secrets], None]


def lifespan_of(
    settings: Settings,
    on_start: OnStart = lambda _ctx, _secrets: None,
    local_token: str | None = None,
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """The lifespan of a service with these settings; ``on_start`` is told once it is ready."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            postgres: EmbeddedPostgres | None = None
            if settings.database_url is None:
                postgres = EmbeddedPostgres(settings.data_dir / "postgres")
                await run_in_threadpool(postgres.start)
                stack.push_async_callback(run_in_threadpool, postgres.stop)
                url = postgres.url
            else:
                url = settings.database_url.get_secret_value()
            db = Database(url, settings.pool_size)
            stack.callback(db.close)
            stack.push_async_callback(db.statements.close)
            secrets = await run_in_threadpool(_prepare, db, settings, local_token)
            hub = Hub(db)
            db.reported = hub.reported
            feed = Feed(db, hub, settings.telemetry_hz)
            db.world = feed.seen
            loop = asyncio.get_running_loop()
            runner = Runner(db, Place(settings.data_dir, url, settings.spark_master))
            ctx = Context(settings, db, hub, feed, runner)
            ctx.changed = lambda: _soon(loop, hub.refresh)
            app.state.context = ctx
            stack.callback(ctx.writer.shutdown)
            evaluator = Evaluator(db, hub, feed, settings.alert_interval_s)
            for work in (
                _listen(db, hub), _maintain(ctx, postgres), feed.run(), evaluator.run(),
                runner.run(),
            ):  # fmt: skip
                stack.push_async_callback(_cancel, asyncio.create_task(work))
            on_start(ctx, secrets)
            yield

    return lifespan


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: the service stops
        loop.call_soon_threadsafe(call)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _prepare(db: Database, settings: Settings, local_token: str | None) -> first_run.Secrets:
    db.check()
    db.migrate()
    with db.begin() as session:
        nodes.all_down(session)
        if local_token is not None:
            enrolments.enrol_local(session, local_token)
        return first_run.prepare(session, settings)


async def _listen(db: Database, hub: Hub) -> None:
    """Changes that another process committed (NOTIFY) reach the engines too."""
    while True:
        try:
            connection = await psycopg.AsyncConnection.connect(db.listen_url, autocommit=True)
            async with connection:
                await connection.execute(f"LISTEN {repository.CHANNEL}")
                hub.refresh()  # what was told while nobody listened
                async for _ in connection.notifies():
                    hub.refresh()
        except psycopg.Error as problem:
            log.warning("LISTEN ended: %s", problem)
        await asyncio.sleep(LISTEN_RETRY_S)


async def _maintain(ctx: Context, postgres: EmbeddedPostgres | None) -> None:
    """Every second: expired faults, a Postgres of our own that died. Now and then: old rows."""
    turn = 0
    while True:
        try:
            if await run_in_threadpool(_end_faults, ctx.db):
                ctx.hub.refresh()
            if turn % HOUSEKEEPING_EVERY == 0:
                await run_in_threadpool(_forget, ctx)
            turn += 1
        except SQLAlchemyError as problem:
            log.warning("maintenance: %s", str(problem).splitlines()[0])
            if postgres is not None:
                with contextlib.suppress(Exception):
                    await run_in_threadpool(postgres.start)
        await asyncio.sleep(MAINTENANCE_S)


def _end_faults(db: Database) -> bool:
    from tidecast_control.kit import resources
    from tidecast_control.kit.actor import SERVICE

    with db.begin() as session:
        over = [row.name for row in repository.all_of(session, "fault") if faults.is_over(row)]
        for name in over:
            resources.delete(session, faults.KIND, name, SERVICE)
        return bool(over)


def _forget(ctx: Context) -> None:
    from tidecast_control.alerts import repository as alerts

    now = utc_now()
    with ctx.db.begin() as session:
        repository.trim_outbox(session, now - timedelta(hours=OUTBOX_HOURS), OUTBOX_KEPT)
        repository.forget_keys(session, now - timedelta(hours=IDEMPOTENCY_HOURS))
        accounts.forget_sessions(session, now)
        audit.forget(session, ctx.settings.audit_days)
        alerts.forget(session, now - timedelta(days=ALERT_DAYS))
