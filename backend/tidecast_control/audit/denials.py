"""Refused requests in the audit: the first of a kind at once, its repeats as one row a minute.

A row costs a transaction and is kept for a year: requests without a login must not create rows
without limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import SQLAlchemyError

from tidecast_control.audit.models import AuditRow
from tidecast_control.db import Database
from tidecast_control.kit.models import storable, utc_now
from tidecast_control.supervisor import Turn

FLUSH_S, WINDOW_S = 1.0, 60.0
KINDS_MAX = 500
"""Kinds of denials that are counted apart in a minute; the others are counted together."""
REASONS_MAX = 8
"""Reasons of one kind that are counted apart; the others are counted together."""
REASON_CHARS_MAX = 100
OTHERS, OTHER_REASONS = "other denials", "other reasons"


@dataclass(frozen=True)
class Denial:
    """A request that was refused."""

    actor: str
    actor_kind: str
    route: str
    """Method and path pattern: names in the path make no separate kinds."""
    action: str
    """Method and path."""
    status: int
    code: str
    detail: str
    request_id: str
    address: str
    network: str

    @property
    def key(self) -> tuple[str, str, str, int, str, str]:
        """The fields that are equal in denials of one kind."""
        return (self.actor, self.actor_kind, self.route, self.status, self.code, self.network)

    @property
    def reason(self) -> str:
        """Why it was refused."""
        return f"{self.code}: {self.detail}"

    def row(self, repeats: str = "") -> AuditRow:
        """As it is stored. ``repeats``: how often it came again, and why."""
        words = f"{self.reason}{repeats}"
        return AuditRow(
            at=utc_now(),
            actor=self.actor,
            actor_kind=self.actor_kind,
            action=storable(self.action),
            kind="",
            name="",
            outcome="denied",
            status=self.status,
            detail=storable(words[:1000]),
            request_id=self.request_id,
            address=self.address,
        )


@dataclass
class _Kind:
    first: Denial
    begun_s: float
    repeats: Counter[str] = field(default_factory=Counter)
    """By reason."""

    def repeat(self, denial: Denial) -> None:
        """Count a denial that came after the first one."""
        reason = denial.reason
        if len(reason) > REASON_CHARS_MAX:
            reason = f"{reason[: REASON_CHARS_MAX - 1]}…"
        if reason not in self.repeats and len(self.repeats) >= REASONS_MAX:
            reason = OTHER_REASONS
        self.repeats[reason] += 1

    def row(self) -> AuditRow:
        """The row of all that came after the first one."""
        reasons = "; ".join(f"{n} x {reason}" for reason, n in self.repeats.most_common())
        times = self.repeats.total()
        return self.first.row(f" ({times} times more within {WINDOW_S:.0f} s: {reasons})")


class Denials:
    """See module. `note` from any thread; memory and rows a minute are bounded."""

    def __init__(self, db: Database, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._db, self._clock_s = db, clock_s
        self._lock, self._flushing = threading.Lock(), threading.Lock()
        self._kinds: dict[object, _Kind] = {}
        self._rows: list[AuditRow] = []
        self.lost = 0
        """Rows that could not be stored, as Postgres was away for long."""

    def note(self, denial: Denial) -> None:
        """A request was refused."""
        with self._lock:
            kind = self._kinds.get(denial.key)
            if kind is None and len(self._kinds) >= KINDS_MAX:
                kind = self._kinds.setdefault(OTHERS, _Kind(_others(denial), self._clock_s()))
            if kind is not None:
                kind.repeat(denial)
                return
            self._kinds[denial.key] = _Kind(denial, self._clock_s())
            self._keep(denial.row())

    def _keep(self, row: AuditRow) -> None:
        if len(self._rows) < 2 * KINDS_MAX:
            self._rows.append(row)
        else:
            self.lost += 1

    async def run(self, turn: Turn) -> None:
        """Store them, for ever."""
        while True:
            await run_in_threadpool(self.flush)
            turn.done()
            await asyncio.sleep(FLUSH_S)

    async def flush_now(self) -> None:
        """The service stops: store all denials, repeats too."""
        with contextlib.suppress(SQLAlchemyError):
            await run_in_threadpool(self.flush, windows_end=True)

    def flush(self, *, windows_end: bool = False) -> None:
        """Store new denials; with ``windows_end`` also repeats of the present minute.

        Denials that another thread is about to store are stored, too, when this returns.
        """
        with self._flushing:
            now_s = self._clock_s()
            with self._lock:
                for key, kind in list(self._kinds.items()):
                    if windows_end or now_s - kind.begun_s >= WINDOW_S:
                        del self._kinds[key]
                        if kind.repeats:
                            self._keep(kind.row())
                rows, self._rows = self._rows, []
            if not rows:
                return
            try:
                with self._db.begin() as session:
                    session.add_all(rows)
            except SQLAlchemyError:
                with self._lock:
                    for row in rows:
                        self._keep(AuditRow(**row.model_dump(exclude={"id"})))
                raise


def _others(denial: Denial) -> Denial:
    return Denial(
        "",
        "anonymous",
        OTHERS,
        OTHERS,
        denial.status,
        "denied",
        f"beyond {KINDS_MAX} kinds",
        "",
        "",
        "",
    )
