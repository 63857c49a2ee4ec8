"""Runs pipelines, some at once: each a process group of its own, bounded in time and output.

Several services may share a database. The one that has a run's process renews the run's lease; when
it no longer does, the run is lost, and the pipeline may run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import DataError, SQLAlchemyError
from sqlmodel import Session

from tidecast_control.db import Database
from tidecast_control.kit import repository as resources_repository
from tidecast_control.kit.models import utc_now
from tidecast_control.kit.process import Tail, error_of, signal_group
from tidecast_control.kit.wake import Wake
from tidecast_control.pipelines import repository, service
from tidecast_control.pipelines.jobs import Command, Place, command_of, rows_of, stored_count
from tidecast_control.pipelines.models import PipelineLogRow, PipelineRunRow
from tidecast_control.pipelines.schemas import PipelineLog
from tidecast_control.supervisor import Turn

log = logging.getLogger("tidecast.control")

TICK_S, RETRY_S, LEASE_S = 2.0, 1.0, 15.0
TERMINATE_S, SHUTDOWN_S = 10.0, 5.0
LOG_BYTES_MAX, REPORT_BYTES_MAX, ERROR_CHARS_MAX = 256 << 10, 8 << 20, 1000
RUNS_KEPT = 100
NOT_HELD = "another service took it for lost: this one did not reach Postgres in time"
CommandOf = Callable[[Mapping[str, Any], Place], Command]


@dataclass
class _Active:
    """A run that is under way."""

    run: PipelineRunRow
    process: asyncio.subprocess.Process
    errors: Tail = field(default_factory=lambda: Tail(LOG_BYTES_MAX))
    output: Tail = field(default_factory=lambda: Tail(REPORT_BYTES_MAX))
    why: str = ""
    """Why it was ended; "" = it ended by itself."""


class Runner:
    """See module. `run` until it is cancelled; then the processes under way are ended."""

    def __init__(
        self,
        db: Database,
        place: Place,
        runs_max: int,
        command: CommandOf = command_of,
        tick_s: float = TICK_S,
    ) -> None:
        self.place = place
        self._db, self._command, self._tick_s = db, command, tick_s
        self._runs_max, self._lease_s = runs_max, LEASE_S
        self._wake = Wake()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._active: dict[str, _Active] = {}
        """Runs that have a process. Both by the run's id."""

    def wake(self) -> None:
        """Look for work now. From any thread."""
        self._wake.set()

    def end(self, run: str) -> None:
        """End a run, if its process is one of this service. From any thread."""
        self._wake.soon(lambda: self._terminate(run, "stopped"))

    def log_of(self, run: str) -> PipelineLog | None:
        """The output so far of a run whose process is one of this service."""
        active = self._active.get(run)
        if active is None:
            return None
        return PipelineLog(run=run, text=active.errors.text, bytes=active.errors.total)

    async def run(self, turn: Turn) -> None:
        """Start the runs that are due, for ever."""
        self._wake.attach()
        try:
            while True:
                self._wake.clear()
                await self._renew()
                rows, problems = await self._stored(self._take)
                problems += self._ended()
                for row in rows:
                    task = self._tasks[row.id] = asyncio.create_task(self._one(row))
                    task.add_done_callback(lambda _task: self._wake.set())
                for problem in problems:
                    turn.failed(problem)
                turn.done()
                await self._wake.wait(self._tick_s)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._tasks.clear()

    async def _renew(self) -> None:
        """Renew the leases of this service's runs, and end runs that are no longer wanted."""
        mine = [run for run, task in self._tasks.items() if not task.done()]

        def renew() -> dict[str, bool]:
            with self._db.begin() as session:
                return repository.renew(session, mine, self._lease_s)

        held = await self._stored(renew) if mine else {}
        for run in mine:
            if run not in held:
                self._terminate(run, NOT_HELD)
            elif held[run]:
                self._terminate(run, "stopped")

    def _ended(self) -> list[Exception]:
        """Forget the tasks that have ended; their failures that no run explains."""
        ended = [run for run, task in self._tasks.items() if task.done()]
        tasks = [self._tasks.pop(run) for run in ended]
        problems = [task.exception() for task in tasks if not task.cancelled()]
        return [each for each in problems if isinstance(each, Exception)]

    async def _stored(self, work: Callable[[], Any]) -> Any:
        """Do ``work`` in a thread, repeated while Postgres is unreachable.

        Raises DataError: a value that it does not take.
        """
        while True:
            try:
                return await run_in_threadpool(work)
            except DataError:
                raise
            except SQLAlchemyError as problem:
                log.warning("pipelines: %s", str(problem).splitlines()[0])
                await asyncio.sleep(RETRY_S)

    # --- choosing ---------------------------------------------------------------------------------

    def _forget_lost(self, session: Session) -> None:
        """End the runs of services that were killed, and the processes that they left."""
        for row in repository.lost(session):
            if row.pid is not None and start_of(row.pid) == row.pid_start is not None:
                signal_group(row.pid, signal.SIGKILL)
            row.state, row.finished_at = "lost", utc_now()
            row.error = "the service ended while it ran"
            session.add(row)
        session.flush()

    def _take(self) -> tuple[list[PipelineRunRow], list[Exception]]:
        """Queue the pipelines that are due; the runs to start, and rows that cannot be read."""
        problems: list[Exception] = []
        room = max(self._runs_max - sum(not task.done() for task in self._tasks.values()), 0)
        with self._db.begin() as session:
            self._forget_lost(session)
            rows = resources_repository.all_of(session, service.KIND.name)
            newest = repository.newest(session)
            now = utc_now()
            for row in rows:
                last = newest.get(row.name)
                try:
                    due = service.next_run(row, last)
                    if due is not None and due <= now and (last is None or last.finished_at):
                        service.queue(session, row, self.place, "schedule", "")
                except (KeyError, TypeError, ValueError) as problem:
                    problems.append(ValueError(f"pipeline {row.name}: {problem!r}"))
            return repository.take_queued(session, room, self._lease_s), problems

    # --- one run ----------------------------------------------------------------------------------

    async def _one(self, row: PipelineRunRow) -> None:
        try:
            self.place.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            command = self._command(row.spec, self.place)
            process = await asyncio.create_subprocess_exec(
                *command.words,
                env=dict(command.environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=self.place.folder,
                start_new_session=True,
            )
        except (OSError, KeyError, TypeError, ValueError) as problem:
            await self._keep(row, Tail(0), state="failed", error=f"cannot start: {problem!r}")
            return
        active = self._active[row.id] = _Active(row, process)
        try:
            await self._watch(active)
        except BaseException:
            active.why = "the service stopped"
            await self._kill(active)
            with contextlib.suppress(TimeoutError):  # Postgres is away: the next start notes it
                async with asyncio.timeout(SHUTDOWN_S):
                    await self._finish(active)
            raise
        finally:
            del self._active[row.id]

    async def _watch(self, active: _Active) -> None:
        pid = active.process.pid
        values = {"pid": pid, "pid_start": start_of(pid)}
        reading = asyncio.gather(
            active.output.read(active.process.stdout), active.errors.read(active.process.stderr)
        )
        if not await self._stored(lambda: self._change(active.run.id, values)):
            active.why = NOT_HELD
            await self._kill(active)
        try:
            async with asyncio.timeout(active.run.spec["timeout_s"]):
                await asyncio.gather(active.process.wait(), reading)
        except TimeoutError:
            active.why = f"it took longer than {active.run.spec['timeout_s']:g} s"
            await self._kill(active)
        await self._finish(active)

    def _change(self, run: str, values: dict[str, Any]) -> bool:
        with self._db.begin() as session:
            return repository.change(session, run, **values)

    def _terminate(self, run: str, why: str) -> None:
        active = self._active.get(run)
        if active is not None and not active.why and active.process.returncode is None:
            active.why = why
            signal_group(active.process.pid, signal.SIGTERM)
            asyncio.get_running_loop().call_later(
                TERMINATE_S, signal_group, active.process.pid, signal.SIGKILL
            )

    async def _kill(self, active: _Active) -> None:
        signal_group(active.process.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(TERMINATE_S):
                await active.process.wait()
        except TimeoutError:
            signal_group(active.process.pid, signal.SIGKILL)
            await active.process.wait()
        signal_group(active.process.pid, signal.SIGKILL)  # processes that it left behind

    async def _finish(self, active: _Active) -> None:
        signal_group(active.process.pid, signal.SIGKILL)
        code = active.process.returncode
        result = _result_of(active.output)
        report = result.get("report") if code == 0 else None
        values: dict[str, Any] = {"exit_code": code, "report": report}
        values |= {"rows": rows_of(report), "errors": stored_count(result.get("errors"))}
        if active.why == "stopped":
            values["state"] = "stopped"
        elif active.why:
            values |= {"state": "failed", "error": active.why}
        elif code == 0:
            values["state"] = "done"
        else:
            error = error_of(code, active.errors.text)[:ERROR_CHARS_MAX]
            values |= {"state": "failed", "error": error}
        await self._keep(active.run, active.errors, **values)

    async def _keep(self, run: PipelineRunRow, said: Tail, **values: Any) -> None:
        def keep(values: Mapping[str, Any] = values) -> None:
            with self._db.begin() as session:
                repository.change(session, run.id, finished_at=utc_now(), **values)
                session.merge(PipelineLogRow(run=run.id, text=said.text, bytes=said.total))
                repository.forget(session, RUNS_KEPT)

        try:
            await self._stored(keep)
        except DataError as problem:
            why = f"its result cannot be stored: {problem.orig}"[:ERROR_CHARS_MAX]
            failed = {"state": "failed", "error": why, "exit_code": values.get("exit_code")}
            await self._stored(partial(keep, failed))


def _result_of(output: Tail) -> dict[str, Any]:
    """The job's own result, as in docs/SPARK.md; empty if it printed none."""
    try:
        result = msgspec.json.decode(bytes(output.kept))
    except msgspec.MsgspecError:
        return {}
    return result if isinstance(result, dict) else {}


def start_of(pid: int) -> int | None:
    """When a process began, in ticks since boot: a later process with this id has another."""
    try:
        raw = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return None
    return int(raw.rpartition(")")[2].split()[19])
