"""A progress bar on standard error for the steps of a job; silent when nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
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

    def say(self, what: str) -> None:
        """What is being done."""
        self._progress.update(self._task, description=what)  # type: ignore[arg-type]


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[Bar]:
    """A bar over ``total`` rows (None: unknown) while the block runs."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    screen = Console(stderr=True)
    with Progress(*columns, console=screen, disable=not sys.stderr.isatty()) as progress:
        yield Bar(progress, progress.add_task(what, total=total))
