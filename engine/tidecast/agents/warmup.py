"""Compile kernels before traffic: on all cores, in child processes, once a build.

Compiled kernels are cached on disk (see `tidecast.native.jit`), so a warm start loads them in well
under a second. A first start waits for the kernels of live topics; an engine compiles the other
kernels in the background (`Background`), and the first durable topic waits for them.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tidecast.config.topology import Topology
from tidecast.errors import TidecastError
from tidecast.native.jit import build_directory

Progress = Callable[[str, int, int], None]
COMPILE_CPU_S = 600
"""CPU time that one compiling process may take: 20 s are usual. A busy machine needs any time."""
_LOOK_S = 0.2
_KERNELS = "tidecast.agents.kernels"
_BACKGROUND_NICE = 10

SHARES = {
    "receiver": 17,
    "sender": 12,
    "inline": 3,
    "rings": 9,
    "client": 12,
    "remote": 3,
    "consumers": 3,
    "puller": 21,
    "puller entries": 5,
    "archiver": 8,
    "log": 5,
    "queues": 2,
}
"""The kernels to compile, and the share of all CPU time that each takes, in percent, measured in
the order of its group."""
_GROUPS = (
    ("rings", "client", "remote", "consumers"),
    ("receiver", "sender", "inline"),
    ("puller", "puller entries"),
    ("archiver", "log", "queues"),
)
"""The kernels that share most, for one process to compile."""
LIVE = ("receiver", "sender", "rings", "client")
"""Kernels of a node with live topics."""
DURABLE = (*LIVE, "consumers", "puller", "puller entries", "archiver", "log", "queues")
"""And one with durable topics."""
CLIENT = ("rings", "client")
"""Kernels of a client of an engine process; its environment may be another than the engine's."""
REMOTE = (*CLIENT, "remote")
"""Kernels of a client of a gateway."""
CONSUMER = (*CLIENT, "consumers")
"""Kernels of a client that consumes durable topics."""
ALL = tuple(SHARES)


def _silent(*_: object) -> None:
    """No progress to show."""


@functools.cache
def _directory() -> Path:
    return build_directory(Path(__file__).with_name("kernels.py"))


def marker(name: str) -> Path:
    """The file that says that the kernels of a name are in the cache."""
    return _directory() / f"{name.replace(' ', '-')}-complete"


def needed(topology: Topology, *, inline: bool = False) -> tuple[str, ...]:
    """The kernels that a node with this topology compiles before it starts."""
    durable = any(topic.mode == "durable" for topic in topology.topics)
    names = DURABLE if durable else LIVE
    return (*names, "inline") if inline else names


def _limit_cpu(pid: int) -> None:
    """Give a process at most COMPILE_CPU_S; a lower limit of the user stays."""
    with contextlib.suppress(ProcessLookupError):
        soft, hard = resource.prlimit(pid, resource.RLIMIT_CPU)
        lowest = min(
            (n for n in (soft, hard) if n != resource.RLIM_INFINITY), default=COMPILE_CPU_S
        )
        limits = min(lowest, COMPILE_CPU_S), hard
        resource.prlimit(pid, resource.RLIMIT_CPU, limits)


class _Child:
    """A process that compiles kernels of these names, one after the other."""

    def __init__(self, names: list[str], nice: int) -> None:
        self.names = names
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        self._words = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `_follow`
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _KERNELS, str(nice), *names],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._words,
            text=True,
        )
        _limit_cpu(self._process.pid)
        threading.Thread(target=self._follow, name="tidecast-compiling", daemon=True).start()

    def _follow(self) -> None:
        with self._process as process, self._words as words:
            assert process.stdout is not None
            for line in process.stdout:
                _COMPILING.compiled(line.strip())
            code = process.wait()
            words.seek(0)
            problem = words.read().strip()[-2000:] or f"exit code {code}"
            if code == -signal.SIGXCPU:
                problem = (
                    f"they took more CPU time than is allowed: {COMPILE_CPU_S} s, or `ulimit -t`"
                )
        _COMPILING.ended(self, problem)

    def stop(self) -> None:
        """End the process. The kernels that it has compiled stay in the cache."""
        self._process.terminate()


class _Compiling:
    """The kernels in this process's cache, and those of its children. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._cached: set[str] = set()
        self._children: list[_Child] = []
        self._problems: dict[str, str] = {}
        self._waits: dict[int, tuple[int, int]] = {}
        """By thread that waits: (kernels that are there, all that it waits for)."""
        self._process_id = os.getpid()

    def missing(self, names: Iterable[str]) -> list[str]:
        """The kernels that are not in the cache."""
        with self._changed:
            left = [name for name in names if name not in self._cached]
            self._cached.update(name for name in left if marker(name).exists())
            return [name for name in left if name not in self._cached]

    def begin(self, names: Iterable[str], nice: int) -> None:
        """Start processes for missing kernels that no process compiles yet."""
        missing = self.missing(names)
        with self._changed:
            coming = {name for child in self._children for name in child.names}
            for hand in _dealt([name for name in missing if name not in coming]):
                for name in hand:
                    self._problems.pop(name, None)
                self._children.append(_Child(hand, nice))

    def wait(self, names: Iterable[str], progress: Progress) -> None:
        """Until all are there. Raises TidecastError when one does not come."""
        wanted = self.missing(names)
        with self._changed:
            told = -1
            while True:
                left = [name for name in wanted if name not in self._cached]
                failed = [name for name in left if name in self._problems]
                if failed:
                    raise TidecastError(
                        f"kernels {failed} do not compile: {self._problems[failed[0]]}"
                    )
                if len(left) != told:
                    told = len(left)
                    if threading.get_ident() in self._waits:
                        self._waits[threading.get_ident()] = (len(wanted) - told, len(wanted))
                    progress(left[0] if left else "", len(wanted) - told, len(wanted))
                if not left:
                    return
                self._changed.wait(_LOOK_S)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """This thread waits for kernels: that is news."""
        self._waits[threading.get_ident()] = (0, 0)
        try:
            yield
        finally:
            del self._waits[threading.get_ident()]

    def news(self) -> str:
        """The reason why a thread waits; "": none does. It never blocks."""
        waits = list(self._waits.values())
        if not waits:
            return ""
        done, of = min(waits)
        steps = f", {done} of {of} groups are done" if of else ""
        return f"it compiles kernels{steps}; it does so once a build"

    def compiled(self, name: str) -> None:
        """A child reports one."""
        with self._changed:
            self._cached.add(name)
            self._changed.notify_all()

    def ended(self, child: _Child, problem: str) -> None:
        """A child has ended, with all of its names or not."""
        with self._changed:
            self._children.remove(child)
            left = [name for name in child.names if name not in self._cached]
            self._problems.update(dict.fromkeys(left, problem))
            self._changed.notify_all()

    def stop(self) -> None:
        """End all children; a caller that waits for them gets an error."""
        if os.getpid() != self._process_id:
            return  # a fork: they are its parent's
        with self._changed:
            children = list(self._children)
        for child in children:
            child.stop()


_COMPILING = _Compiling()
atexit.register(_COMPILING.stop)


def is_warm(names: Iterable[str] = ALL) -> bool:
    """Are these kernels of this build in the cache?"""
    return not _COMPILING.missing(names)


def warm_up(progress: Progress | None = None, names: Iterable[str] = ALL) -> None:
    """Compile missing kernels. ``progress(next name, done, total)`` is called before each.

    Raises TidecastError with the compiler's message when a kernel does not compile.
    """
    names = tuple(names)
    if not is_warm(names):
        with _COMPILING.waiting():  # from here on: to start the processes may take seconds
            _COMPILING.begin(names, 0)
            _COMPILING.wait(names, progress or _silent)


def news() -> str:
    """Why a call takes long: it waits for the compiler; "": none does."""
    return _COMPILING.news()


class Background:
    """Compiles kernels that an engine may need later, at low priority, while the engine runs."""

    def start(self) -> None:
        """Begin; nothing waits."""
        _COMPILING.begin(DURABLE, _BACKGROUND_NICE)

    def stop(self) -> None:
        """End it. Compiled kernels stay; the next start compiles the rest."""
        _COMPILING.stop()


def _dealt(names: list[str]) -> list[list[str]]:
    """Names by their groups, dealt to as many processes as there are cores: the longest first."""
    groups = [[name for name in group if name in names] for group in _GROUPS]
    cores = len(os.sched_getaffinity(0))
    hands: list[list[str]] = [[] for _ in range(cores)]
    for group in sorted(groups, key=_share, reverse=True):
        min(hands, key=_share).extend(group)
    return [hand for hand in hands if hand]


def _share(names: list[str]) -> int:
    return sum(SHARES[name] for name in names)
