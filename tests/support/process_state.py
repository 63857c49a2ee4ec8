"""State of the whole process that a test may change and must restore.

A test that leaves such a change decides how a later test of the same worker ends: the suite then
passes or fails by the order of its tests. `snapshot` reads the state in about 0.1 ms; `changes`
names each difference. The autouse fixture `process_state` in `tests/unit/conftest.py` compares
the two around each test, behind the set-up of fixtures that live longer than a test; so does the
one of `tests/control`.

Pytest restores the filters of warnings and the captured streams itself. Threads are not compared:
the pool of a server that a file's tests share adds threads as requests come.
"""

from __future__ import annotations

import asyncio
import gc
import locale
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGCHLD,
    signal.SIGPIPE,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGWINCH,
)
"""Of pytest-timeout are SIGALRM and its timer."""
LIMITS = ("NOFILE", "CORE", "AS", "FSIZE", "MEMLOCK", "NPROC", "STACK")

WRITTEN_BY_OTHERS = (b"PYTEST_CURRENT_TEST", b"_RJEM_MALLOC_CONF")
"""Variables that no test writes: pytest writes one, the first import of Polars the other."""

State = dict[str, Any]


def snapshot() -> State:
    """All state by its name; values compare equal as long as nothing changes."""
    environment = os.environ._data.copy()  # type: ignore[attr-defined] # bytes: nothing to decode
    for name in WRITTEN_BY_OTHERS:
        environment.pop(name, None)
    return {
        "os.environ": environment,
        "working directory": Path.cwd(),
        "sys.path": tuple(sys.path),
        "signal handlers": {number: signal.getsignal(number) for number in SIGNALS},
        "wakeup descriptor of signals": _wakeup_fd(),
        "umask": _umask(),
        "limits": {
            name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in LIMITS
        },
        "nice value": os.getpriority(os.PRIO_PROCESS, 0),
        "locale": locale.setlocale(locale.LC_ALL),
        "time zone": time.tzname,
        "garbage collector": (gc.isenabled(), gc.get_threshold(), gc.get_debug()),
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook),
        "trace functions": (sys.gettrace(), sys.getprofile(), threading.gettrace()),
        "switch interval": sys.getswitchinterval(),
        "recursion limit": sys.getrecursionlimit(),
        "event loop policy": asyncio.get_event_loop_policy(),
        "logging.disable": logging.root.manager.disable,
        "loggers": _loggers(),
    }


def changes(before: State, after: State) -> list[str]:
    """The differences, a line each; names of new loggers and modules are no change."""
    found = []
    for name, old in before.items():
        new = after[name]
        if name == "loggers":
            found += _changed_loggers(old, new)
        elif old != new and isinstance(old, dict):
            keys = [key for key in old.keys() | new.keys() if old.get(key) != new.get(key)]
            found += [f"{name}: {key!s}: {old.get(key)} became {new.get(key)}" for key in keys]
        elif old != new:
            found.append(f"{name}: {old} became {new}")
    return found


def unchanged() -> Iterator[None]:
    """For a fixture: fail a test that leaves a change which later tests of its worker would see."""
    before = snapshot()
    yield
    left = changes(before, snapshot())
    if left:
        pytest.fail("the test left changes of the process:\n" + "\n".join(left), pytrace=False)


@contextmanager
def kept_loggers(*names: str) -> Iterator[None]:
    """Loggers are after the block as they were before it."""
    loggers = [logging.getLogger(name) for name in names]
    before = [(at.level, at.disabled, at.propagate, at.handlers[:]) for at in loggers]
    try:
        yield
    finally:
        for at, (level, disabled, propagate, handlers) in zip(loggers, before, strict=True):
            at.setLevel(level)
            at.disabled, at.propagate, at.handlers = disabled, propagate, handlers


def _wakeup_fd() -> int:
    fd = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(fd)
    return fd


def _umask() -> bytes:
    """Read, not set and restored: threads of a test may be creating files."""
    status = Path("/proc/self/status").read_bytes()
    return status[status.index(b"Umask:") + 6 :].split(None, 1)[0]


def _loggers() -> dict[str, tuple[int, bool, bool, tuple[logging.Handler, ...]]]:
    known = logging.root.manager.loggerDict
    made = {
        name: (at.level, at.disabled, at.propagate, tuple(at.handlers))
        for name, at in known.copy().items()
        if isinstance(at, logging.Logger)
    }
    root = logging.root
    made["root"] = (root.level, root.disabled, root.propagate, tuple(root.handlers))
    return made


def _changed_loggers(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """A library may create its loggers at import, with a level and a `NullHandler`."""
    if old == new:
        return []
    found = []
    for name, (level, disabled, propagate, handlers) in new.items():
        if name in old:
            changed = old[name] != (level, disabled, propagate, handlers)
        else:
            changed = disabled or any(type(at) is not logging.NullHandler for at in handlers)
        if changed:
            found.append(
                f"logger {name}: {old.get(name)} became {(level, disabled, propagate, handlers)}"
            )
    return found
