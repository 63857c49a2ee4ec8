"""Channels that only ever add: messages of a topic, a flight recorder, alerts, audit."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from fastapi.concurrency import run_in_threadpool
from sqlalchemy import func, select
from sqlmodel import Session, col

from tidecast_control.alerts import service as alerts
from tidecast_control.audit import repository as audit
from tidecast_control.audit.models import AuditRow
from tidecast_control.audit.schemas import AuditEntry
from tidecast_control.db import Database
from tidecast_control.kit.paging import PageQuery
from tidecast_control.kit.problems import ProblemError
from tidecast_control.leases import moves
from tidecast_control.link.hub import Engine, Hub
from tidecast_control.live.rates import Json
from tidecast_control.messages.decode import shown_message
from tidecast_control.nodes.records import shown_record

POLL_S = 1.0
RECORDS_ASKED, BACKLOG_MAX = 200, 1000


class AppendSource(Protocol):
    """Where entries come from."""

    async def take(self, limit: int) -> Json | None:
        """The lines since the call before; None when there are none."""

    async def close(self) -> None:
        """No more is wanted."""


async def open_source(name: str, db: Database, hub: Hub) -> AppendSource | None:
    """The source of an append channel; None for the others. Raises `no_node`, `not_found`."""
    kind, _, rest = name.partition(":")
    match kind:
        case "messages" if rest:
            topic = rest.removesuffix("#withheld")
            source = Tail(topic, hub, withheld=rest.endswith("#withheld"))
            await source.open()
            return source
        case "recorder" if rest:
            await hub.named(rest)
            return Recorder(rest, hub)
        case "alerts" if not rest:
            return Alerts(db)
        case "audit" if not rest:
            return Audit(db)
        case "moves" if not rest:
            return Moves(db)
    return None


class Tail:
    """Messages of a topic as they come, from every engine: each shows its own publications.

    The first engine shows messages of nodes that are not connected to the service.
    """

    def __init__(self, topic: str, hub: Hub, *, withheld: bool) -> None:
        self._topic, self._hub, self._withheld = topic, hub, withheld
        self._found: deque[Json] = deque()
        self._skipped = 0
        self._streams: dict[Engine, str] = {}
        """By connection: an engine that connects again has none of the streams of before."""

    async def open(self) -> None:
        """Begin at every engine. Raises `no_node`, `not_found` when none can."""
        self._hub.engine("")
        engines = sorted(self._hub.engines, key=lambda engine: engine.name)
        problem: ProblemError | None = None
        for i, engine in enumerate(engines):
            others = [each.name for each in engines if each is not engine]
            args = {"topic": self._topic, "except": others, "first": i == 0}
            try:
                stream = await self._hub.stream(engine.name, "tail", args, self._on_items)
            except ProblemError as refused:
                problem, stream = refused, ""
            except BaseException:  # its viewer left
                await self.close()
                raise
            self._streams[engine] = stream
        if problem is not None and not any(self._streams.values()):
            self._streams.clear()
            raise problem

    def _on_items(self, items: Json) -> None:
        self._skipped += int(items["skipped"])
        self._found.extend(items["messages"])
        while len(self._found) > BACKLOG_MAX:
            self._found.popleft()
            self._skipped += 1

    async def take(self, limit: int) -> Json | None:
        """See `AppendSource`."""
        if self._streams.keys() != set(self._hub.engines):  # connections came or went
            try:
                await self.close()
                await self.open()
            except ProblemError:
                return None
        if not self._found and not self._skipped:
            return None
        taken = [self._found.popleft() for _ in range(min(limit, len(self._found)))]
        skipped, self._skipped = self._skipped, 0
        shown = [shown_message(m, withheld=self._withheld) for m in taken]
        return {
            "messages": [m.model_dump(mode="json", exclude_none=True) for m in shown],
            "skipped": str(skipped),
            "withheld": self._withheld,
        }

    async def close(self) -> None:
        """See `AppendSource`."""
        streams, self._streams = self._streams, {}
        for engine, stream in streams.items():
            if stream:
                await self._hub.end_stream(engine.name, stream)


class _Polled:
    """Asked at most once a second."""

    def __init__(self) -> None:
        self._due_s = 0.0

    def _is_due(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._due_s:
            return False
        self._due_s = now_s + POLL_S
        return True

    async def close(self) -> None:
        """Nothing is held."""


class Recorder(_Polled):
    """A node's flight recorder."""

    def __init__(self, node: str, hub: Hub) -> None:
        super().__init__()
        self._node, self._hub = node, hub
        self._seen: set[tuple[Any, ...]] = set()

    async def take(self, limit: int) -> Json | None:
        """See `AppendSource`."""
        if not self._is_due():
            return None
        args = {"limit": min(limit, RECORDS_ASKED), "section": "all"}
        try:
            answer = await self._hub.ask(self._node, "recorder", args, 2.0)
        except ProblemError:
            return None
        marks = [(r["at_ns"], r["writer"], r["section"], r["text"]) for r in answer["records"]]
        new = [
            record
            for record, mark in zip(answer["records"], marks, strict=True)
            if mark not in self._seen
        ]
        self._seen = set(marks)
        shown = [shown_record(r).model_dump(mode="json") for r in new]
        return {"records": shown} if shown else None


class _Changing(_Polled):
    """New and changed rows among the newest rows of a table."""

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db
        self._seen: dict[str, Json] | None = None

    def _rows(self, session: Session, limit: int) -> Iterable[Any]:
        """The newest, each with an id."""
        raise NotImplementedError

    async def take(self, limit: int) -> Json | None:
        """See `AppendSource`."""
        if not self._is_due():
            return None

        def read() -> dict[str, Json]:
            with self._db.begin() as session:
                rows = self._rows(session, limit)
                return {row.id: row.model_dump(mode="json", exclude_none=True) for row in rows}

        now = await run_in_threadpool(read)
        before, self._seen = self._seen, now
        if before is None:
            return None
        new = [row for key, row in now.items() if before.get(key) != row]
        return {"entries": new} if new else None


class Alerts(_Changing):
    """Alerts as they fire and resolve."""

    def _rows(self, session: Session, limit: int) -> Iterable[Any]:
        return alerts.page(session, None, PageQuery(limit)).items


class Moves(_Changing):
    """Moves of leased topics, as they begin and as they end."""

    def _rows(self, session: Session, limit: int) -> Iterable[Any]:
        return moves.page(session, moves.MovesQuery(PageQuery(limit))).items


class Audit(_Polled):
    """Audit entries as they are made."""

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db
        self._last: int | None = None

    async def take(self, limit: int) -> Json | None:
        """See `AppendSource`."""
        if not self._is_due():
            return None

        def read() -> list[AuditRow]:
            with self._db.begin() as session:
                if self._last is None:
                    newest = session.execute(select(func.max(col(AuditRow.id)))).scalar_one()
                    self._last = int(newest or 0)
                    return []
                rows = audit.page(session, audit.AuditQuery(limit), None)
            return [row for row in reversed(rows) if (row.id or 0) > (self._last or 0)]

        rows = await run_in_threadpool(read)
        if not rows:
            return None
        self._last = rows[-1].id
        shown = [AuditEntry.model_validate(r).model_dump(mode="json") for r in rows]
        return {"entries": shown}
