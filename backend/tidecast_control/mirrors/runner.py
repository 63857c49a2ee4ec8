"""Runs the mirrors of a platform: each a process of its own, at one service at a time.

A mirror that is held here is run until it is paused, edited or deleted, or another service has it:
a service that ends releases its mirrors, and one that is killed holds them for `LEASE_S` more. Two
that run at once for a moment do no harm: the position is checked with each append.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import SQLAlchemyError

from tidecast_control.db import Database
from tidecast_control.kit import repository as resources_repository
from tidecast_control.kit.models import utc_now
from tidecast_control.kit.wake import Wake
from tidecast_control.mirrors import repository, service
from tidecast_control.mirrors.copying import COMMAND, Copy
from tidecast_control.mirrors.models import MirrorStateRow
from tidecast_control.mirrors.schemas import MirrorProgress
from tidecast_control.supervisor import Turn

TICK_S, IDLE_S, LEASE_S, RELEASE_S = 1.0, 2.0, 15.0, 5.0
Wanted = dict[str, tuple[bytes, MirrorStateRow]]
"""(job, figures so far) of each mirror that this service holds."""


class MirrorRunner:
    """See module. `run` until it is cancelled; then the processes are ended."""

    def __init__(
        self,
        db: Database,
        data_dir: Path,
        mirrors_max: int,
        *,
        command: Sequence[str] = COMMAND,
        tick_s: float = TICK_S,
    ) -> None:
        self.command, self.holder = command, str(uuid.uuid4())
        self._db, self._data_dir, self._max, self._tick_s = db, data_dir, mirrors_max, tick_s
        self._wake = Wake()
        self.copies: dict[str, Copy] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[str] = set()
        """Cancelled, and not yet over: the service may stop meanwhile."""
        self._kept: dict[str, dict[str, Any]] = {}
        """The figures that Postgres has."""

    def wake(self) -> None:
        """Look at the mirrors now. From any thread."""
        self._wake.set()

    def retry(self, mirror: str) -> None:
        """Let a mirror that waits after an error try now. From any thread."""

        def again() -> None:
            if mirror in self.copies:
                self.copies[mirror].retry()
            self._wake.set()

        self._wake.soon(again)

    def progress_of(self, mirror: str) -> MirrorProgress:
        """The last minutes of a mirror, if it runs here."""
        copy = self.copies.get(mirror)
        return MirrorProgress(mirror=mirror) if copy is None else copy.progress(mirror)

    async def run(self, turn: Turn) -> None:
        """Keep the mirrors running, for ever."""
        self._wake.attach()
        try:
            while True:
                self._wake.clear()
                try:
                    wanted, problems = await run_in_threadpool(self._take)
                    problems += await self._settle(wanted)
                    await run_in_threadpool(self._keep)
                    for problem in problems:
                        turn.failed(problem)
                except SQLAlchemyError as problem:  # the mirrors continue meanwhile
                    turn.failed(problem)
                turn.done()
                wait_s = self._tick_s if self.copies else max(self._tick_s, IDLE_S)
                await self._wake.wait(wait_s)
        finally:
            await self._stop(list(self.copies))

    # --- choosing ---------------------------------------------------------------------------------

    def _take(self) -> tuple[Wanted, list[Exception]]:
        wanted: Wanted = {}
        problems: list[Exception] = []
        with self._db.begin() as session:
            found = resources_repository.all_of(session, service.KIND.name)
            rows = {row.name: row for row in found if not row.spec.get("paused")}
            repository.forget_others(session)
            held = repository.take(session, rows, self.holder, LEASE_S)
            states = repository.states(session) if held else {}
            first = sorted(held, key=lambda name: (name not in self.copies, name))
            for name in first[self._max :]:
                text = (
                    f"{self._max} mirrors run on this service already: pause one, or set "
                    "TIDECAST_CONTROL_MIRRORS_MAX"
                )
                self._note(session, name, text)
            for name in first[: self._max]:
                try:
                    job = service.job_of(session, rows[name], self._data_dir)
                except (KeyError, TypeError, ValueError) as problem:
                    self._note(session, name, str(problem))
                    problems.append(ValueError(f"mirror {name}: {problem}"))
                    continue
                wanted[name] = (job, states[name])
        return wanted, problems

    def _note(self, session: Any, name: str, error: str) -> None:
        """A mirror that cannot run."""
        values = {"state": "waiting", "error": error, "error_at": utc_now(), "rate": 0.0}
        repository.keep(session, self.holder, name, values)

    async def _settle(self, wanted: Wanted) -> list[Exception]:
        """Start, restart and stop mirrors that changed; the failures of tasks that have ended."""
        ended = {name: task.exception() for name, task in self._tasks.items() if task.done()}
        over = [
            name
            for name, copy in self.copies.items()
            if name not in wanted or wanted[name][0] != copy.job or name in ended
        ]
        await self._stop(over)
        for name, (job, before) in wanted.items():
            if name not in self.copies:
                self.copies[name] = Copy(job, before, command=self.command)
                self._tasks[name] = asyncio.create_task(self.copies[name].run(), name=name)
        return [RuntimeError(f"mirror {name}: {problem!r}") for name, problem in ended.items()]

    async def _stop(self, names: Sequence[str]) -> None:
        """End mirrors, store their figures, and release them to other services."""
        if not names:
            return
        for name in names:
            if name not in self._ending:  # a second cancel would leave its process alone
                self._tasks[name].cancel()
        self._ending.update(names)
        await asyncio.wait([self._tasks[name] for name in names])
        self._ending.difference_update(names)
        last = {name: self.copies.pop(name).figures | {"rate": 0.0} for name in names}
        for name in names:
            del self._tasks[name]
            self._kept.pop(name, None)

        def release() -> None:
            with self._db.begin() as session:
                for name, figures in last.items():
                    repository.keep(session, self.holder, name, figures | {"started_at": None})
                repository.release(session, self.holder, names)

        with contextlib.suppress(SQLAlchemyError, TimeoutError):  # the lease ends by itself
            async with asyncio.timeout(RELEASE_S):
                await run_in_threadpool(release)

    def _keep(self) -> None:
        """Store the figures that changed."""
        changed = {
            name: dict(copy.figures)
            for name, copy in self.copies.items()
            if copy.figures != self._kept.get(name)
        }
        if not changed:
            return
        with self._db.begin() as session:
            for name, figures in changed.items():
                repository.keep(session, self.holder, name, figures | {"updated_at": utc_now()})
        self._kept.update(changed)
