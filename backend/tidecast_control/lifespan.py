"""Starting and stopping the service: Postgres, migrations, first run, background work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from operator import itemgetter

import psycopg
from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import SQLAlchemyError

from tidecast.errors import ConfigError
from tidecast_control import first_run, vault
from tidecast_control.alerts import secrets as webhooks
from tidecast_control.alerts.evaluate import Evaluator
from tidecast_control.alerts.webhooks import WebhookSender
from tidecast_control.audit import service as audit
from tidecast_control.auth import repository as accounts
from tidecast_control.context import Context
from tidecast_control.db import CONNECT_S, Database
from tidecast_control.faults import service as faults
from tidecast_control.kit import repository
from tidecast_control.kit.models import utc_now
from tidecast_control.kit.problems import ProblemError
from tidecast_control.kit.wake import call_soon
from tidecast_control.leases import moves
from tidecast_control.link.hub import Hub
from tidecast_control.live.feed import Feed
from tidecast_control.mirrors import secrets as mirror_secrets
from tidecast_control.mirrors.runner import MirrorRunner
from tidecast_control.nodes import levels
from tidecast_control.nodes import repository as nodes
from tidecast_control.nodes import service as enrolments
from tidecast_control.pipelines.jobs import Place
from tidecast_control.pipelines.runner import Runner
from tidecast_control.postgres import EmbeddedPostgres
from tidecast_control.settings import Settings
from tidecast_control.supervisor import Turn, every
from tidecast_control.wire_keys import service as wire_keys

MAINTENANCE_S, NODES_S, HOUSEKEEPING_S = 1.0, 5.0, 600.0
OUTBOX_HOURS, OUTBOX_KEPT = 24, 10_000
IDEMPOTENCY_HOURS, ALERT_DAYS = 24, 90

OnStart = Callable[[Context, first_run.Secrets], None]


def lifespan_of(
    settings: Settings,
    on_start: OnStart = lambda _ctx, _secrets: None,
    local_token: str | None = None,
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """The lifespan of a service with these settings; ``on_start`` is called once it is ready."""

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
            key_file = settings.secrets_key_file or settings.data_dir / vault.FILE_NAME
            db = Database(url, settings.pool_size, vault.load_vault(key_file))
            stack.callback(db.close)
            stack.push_async_callback(db.statements.close)
            secrets = await run_in_threadpool(_prepare, db, settings, local_token)
            hub = Hub(db)
            db.reported = hub.reported
            feed = Feed(db, hub, settings.telemetry_hz)
            db.world = feed.seen
            loop = asyncio.get_running_loop()
            place = Place(settings.data_dir, url, settings.spark_master)
            runner = Runner(db, place, settings.pipelines_max)
            mirrors = MirrorRunner(db, settings.data_dir, settings.mirrors_max)
            ctx = Context(settings, db, hub, feed, runner, mirrors)
            ctx.changed = lambda: call_soon(loop, hub.refresh)
            app.state.context = ctx
            stack.callback(ctx.passwords.close)
            stack.push_async_callback(ctx.denials.flush_now)
            stack.push_async_callback(ctx.supervisor.stop)
            _start_tasks(ctx, postgres)
            on_start(ctx, secrets)
            yield

    return lifespan


def _start_tasks(ctx: Context, postgres: EmbeddedPostgres | None) -> None:
    """Start the service's own tasks; `/health/ready` and `/metrics` have a check of each."""
    start = ctx.supervisor.start
    evaluator = Evaluator(ctx.db, ctx.hub, ctx.feed, ctx.settings.alert_interval_s)
    sender = WebhookSender(ctx.db, ctx.settings.webhook_policy)
    evaluator.on_queued = sender.wake
    if postgres is not None:
        start("postgres", every(MAINTENANCE_S, partial(_keep_up, ctx.db, postgres)))
    start("changes", partial(_listen, ctx.db, ctx.hub), stall_s=None)
    start("nodes", every(NODES_S, NodesCheck(ctx).step))
    start("faults", every(MAINTENANCE_S, partial(_end_faults, ctx)))
    start("housekeeping", every(HOUSEKEEPING_S, partial(_forget, ctx)), stall_s=None)
    start("live_feed", ctx.feed.run)
    start("alerts", evaluator.run, stall_s=max(60.0, 3 * ctx.settings.alert_interval_s))
    start("webhooks", sender.run)
    start("audit", ctx.denials.run)
    start("pipelines", ctx.runner.run, stall_s=None)
    start("mirrors", ctx.mirrors.run)


def _prepare(db: Database, settings: Settings, local_token: str | None) -> first_run.Secrets:
    db.check()
    db.migrate()
    with db.begin() as session:
        try:
            wire_keys.reseal(session, forget=settings.forget_secrets)
            webhooks.reseal(session, forget=settings.forget_secrets)
            mirror_secrets.reseal(session, forget=settings.forget_secrets)
        except vault.Unopened as problem:
            raise ConfigError(str(problem)) from None
        nodes.all_down(session)
        levels.ensure(session)
        if local_token is not None:
            enrolments.enrol_local(session, local_token)
        return first_run.prepare(session, settings)


async def _listen(db: Database, hub: Hub, turn: Turn) -> None:
    """Changes that another process committed (NOTIFY) reach the engines too."""
    connection = await psycopg.AsyncConnection.connect(
        db.listen_url, autocommit=True, connect_timeout=CONNECT_S
    )
    async with connection:
        await connection.execute(f"LISTEN {repository.CHANNEL}")
        hub.refresh()  # changes that were announced before this connection listened
        turn.done()
        async for _ in connection.notifies():
            hub.refresh()


async def _keep_up(db: Database, postgres: EmbeddedPostgres, turn: Turn) -> None:
    """Start a Postgres of our own again when it died."""
    try:
        await run_in_threadpool(db.ping)
    except SQLAlchemyError as problem:
        turn.failed(problem)
        await run_in_threadpool(postgres.start)


Connection = tuple[str, datetime | None]
"""A connection of an engine: the node's name, and when it began."""


class NodesCheck:
    """Connections of nodes that Postgres has and that are over: they ended while it was away."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._missing: set[Connection] = set()

    async def step(self, turn: Turn) -> None:
        """A connection that is missing twice in a row is over: one that begins now is not."""
        del turn
        hub = self._ctx.hub
        stored, here = await run_in_threadpool(self._connected), set(hub.connected())
        found = {each for each in stored if each[0] not in here}
        gone = found & self._missing
        self._missing = found - gone
        if gone:
            await run_in_threadpool(self._note, gone)
            hub.on_change()

    def _connected(self) -> set[Connection]:
        with self._ctx.db.begin() as session:
            return {(state.name, state.connected_at) for state in nodes.connected(session)}

    def _note(self, gone: set[Connection]) -> None:
        with self._ctx.db.begin() as session:
            for name, since in sorted(gone, key=itemgetter(0)):
                enrolments.gone(session, name, since)


async def _end_faults(ctx: Context, turn: Turn) -> None:
    """Switch off expired faults, each by itself: a fault that cannot be ended keeps no other on."""
    over, unreadable = await run_in_threadpool(_expired, ctx.db)
    for problem in unreadable:
        turn.failed(problem)
    for name in over:
        try:
            await run_in_threadpool(_end_fault, ctx.db, name)
        except (ProblemError, ValueError, SQLAlchemyError) as problem:
            turn.failed(problem)
    if over:
        ctx.hub.refresh()


def _expired(db: Database) -> tuple[list[str], list[Exception]]:
    """(faults whose time is over, problems of rows that cannot be read)."""
    over: list[str] = []
    unreadable: list[Exception] = []
    with db.begin() as session:
        for row in repository.all_of(session, "fault"):
            try:
                if faults.is_over(row):
                    over.append(row.name)
            except (TypeError, ValueError) as problem:
                unreadable.append(ValueError(f"fault {row.name}: {problem}"))
    return over, unreadable


def _end_fault(db: Database, name: str) -> None:
    with db.begin() as session:
        faults.expire(session, name)


async def _forget(ctx: Context, turn: Turn) -> None:
    """Delete old rows."""
    del turn
    await run_in_threadpool(_forget_rows, ctx)
    ctx.hub.refresh()  # secrets of transports may have been rotated


def _forget_rows(ctx: Context) -> None:
    from tidecast_control.alerts import repository as alerts

    now = utc_now()
    with ctx.db.begin() as session:
        repository.trim_outbox(session, now - timedelta(hours=OUTBOX_HOURS), OUTBOX_KEPT)
        repository.forget_keys(session, now - timedelta(hours=IDEMPOTENCY_HOURS))
        accounts.forget_sessions(session, now)
        audit.forget(session, ctx.settings.audit_days)
        moves.forget(session)
        wire_keys.tend(session, ctx.settings.wire_keys_hours * 3600)
        alerts.forget(session, now - timedelta(days=ALERT_DAYS))
        alerts.forget_secrets(session)
