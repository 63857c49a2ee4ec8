"""A progress bar on standard error for the steps of a job; only on a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Bar:
    """One bar: `advance` by rows that are done."""

    def __init__(self, progress: Progress, task: int) -> None:
        self._progress, self._task = progress, task

    def advance(self, n: int) -> None:
        """So many more are done."""
        self._progress.advance(self._task, n)  # type: ignore[arg-type]

    def reach(self, n: int) -> None:
        """So many are done in all."""
        self._progress.update(self._task, completed=n)  # type: ignore[arg-type]

    def say(self, what: str) -> None:
        """Show the present step."""
        self._progress.update(self._task, description=what)  # type: ignore[arg-type]


WATCH_S = 0.5


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[Bar]:
    """A bar over ``total`` rows (None: unknown) while the block runs."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    screen = Console(stderr=True)
    with Progress(*columns, console=screen, disable=not sys.stderr.isatty()) as progress:
        yield Bar(progress, progress.add_task(what, total=total))


@contextmanager
def watched(bar: Bar, done: Callable[[], int]) -> Iterator[None]:
    """Read ``done`` twice a second while the block runs, if the bar is shown."""
    if not sys.stderr.isatty():
        yield
        return
    over = threading.Event()

    def look() -> None:
        while not over.wait(WATCH_S):
            bar.reach(done())

    looking = threading.Thread(target=look, name="progress", daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
