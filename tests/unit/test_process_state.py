"""The check that fails a test which leaves a change of the process."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support import process_state

LOGGER = logging.getLogger("tests.process_state")


def _chdir(patch: pytest.MonkeyPatch) -> None:
    patch.chdir(Path("/"))


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "os.environ": lambda patch: patch.setenv("TIDECAST_LEFT", "1"),
    "working directory": _chdir,
    "sys.path": lambda patch: patch.syspath_prepend("/left"),
    "hooks": lambda patch: patch.setattr(sys, "excepthook", print),
    "logging.disable": lambda patch: patch.setattr(logging.root.manager, "disable", 10),
    "logger tests.process_state": lambda patch: patch.setattr(LOGGER, "disabled", True),
    "logger root": lambda patch: patch.setattr(logging.root, "level", 7),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_change_is_named_until_it_is_undone(name: str) -> None:
    before = process_state.snapshot()
    assert process_state.changes(before, process_state.snapshot()) == []
    with pytest.MonkeyPatch.context() as patch:
        PLANTED[name](patch)
        [found] = process_state.changes(before, process_state.snapshot())
        assert found.startswith(name)
    assert process_state.changes(before, process_state.snapshot()) == []


def test_signals_and_the_collector_are_compared() -> None:
    before = process_state.snapshot()
    kept = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    gc.disable()
    try:
        found = process_state.changes(before, process_state.snapshot())
    finally:
        gc.enable()
        signal.signal(signal.SIGUSR1, kept)
    assert [line.partition(":")[0] for line in found] == ["signal handlers", "garbage collector"]


def test_a_library_may_create_loggers_and_not_configure_them() -> None:
    before = process_state.snapshot()
    made = logging.getLogger(f"tests.process_state.{os.urandom(4).hex()}")
    made.addHandler(logging.NullHandler())
    assert process_state.changes(before, process_state.snapshot()) == []
    made.addHandler(logging.StreamHandler())
    try:
        assert process_state.changes(before, process_state.snapshot())
    finally:
        made.handlers.clear()


def test_loggers_are_kept() -> None:
    before = process_state.snapshot()
    with process_state.kept_loggers(LOGGER.name):
        LOGGER.setLevel(logging.DEBUG)
        LOGGER.propagate = False
        LOGGER.addHandler(logging.StreamHandler())
        assert process_state.changes(before, process_state.snapshot())
    assert process_state.changes(before, process_state.snapshot()) == []
