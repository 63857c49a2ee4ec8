"""Shared by all suites: Hypothesis settings, the build under test, waiting without sleeping."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import parts, shards
from tests.support import compiled, kafka_brokers
from tests.support.patience import Patience

# Kernels compile within the first example: a deadline would only measure the compiler.
# In CI the examples are the same in every run: a red build is a change's fault.
# A checked build repeats tests that the release build passed: it needs inputs, not all of them.
CHECKED = os.environ.get("TIDECAST_BOUNDSCHECK", "0") not in ("", "0")
hypothesis.settings.register_profile(
    "tidecast",
    deadline=None,
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
    max_examples=30 if CHECKED else 100,
)
hypothesis.settings.load_profile("tidecast")


def pytest_report_header() -> list[str]:
    lines = [f"tidecast: {'checked build (TIDECAST_BOUNDSCHECK)' if CHECKED else 'release build'}"]
    if importlib.util.find_spec("pyspark") is None:
        lines.append("tests/spark: left out, PySpark is an extra (make install-spark)")
    return lines


M_MMAP_THRESHOLD, MAPPED_BYTES_MIN = -3, 256 << 10
"""Of glibc's allocator: from here on memory is mapped, and returned when it is freed.

By itself it raises the limit to 32 MiB, and a node's tables of megabytes stay in the heap.
"""


def pytest_configure(config: pytest.Config) -> None:
    """Kernels are compiled once, by the process that hands tests to its workers."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a job in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)  # else the tests' commands too
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
    config.pluginmanager.register(compiled.Plugin(), "tidecast-compiled")
    gc.disable()  # what is imported and collected stays: see `pytest_collection_finish`
    if config.getoption("numprocesses", None):
        from tests.support import warm
        from tidecast.agents.warmup import warm_up

        gc.enable()  # this process collects no tests
        with warm.beside(config.getoption("part")):
            warm_up()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of `--dist loadgroup`: the groups are ours."""
    if config.getoption("dist") != "loadgroup":
        return None
    from tests.scheduling import GroupScheduling

    return GroupScheduling(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", default="1/1", help="run this part of so many: 2/8")
    parser.addoption("--part", default="all", choices=parts.PARTS, help="see tests/parts.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of which this part has no test."""
    if not collection_path.name.startswith("test_"):
        return None
    here = parts.has_tests(config.getoption("part"), collection_path, config.rootpath)
    return None if here else True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of this part and shard, of those that `-m` and `-k` have left."""
    _keep(config, items, parts.kept(items, config.getoption("part"), CHECKED))
    number, count = shards.parsed(config.getoption("shard"))
    chosen = shards.chosen([item.nodeid for item in items], number, count)
    _keep(config, items, [item for item, keep in zip(items, chosen, strict=True) if keep])


def _keep(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item]) -> None:
    keep = set(kept)
    out = [item for item in items if item not in keep]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = kept


def pytest_collection_finish() -> None:
    """The compiler's objects live for ever: without them the collector finds what tests leave.

    It looks at old objects only when a quarter is new; closed networks piled up to gigabytes.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Collect what a test left once the process has grown: networks hold themselves in circles.

    The collector counts objects, not their bytes. The simulations piled up to 2.7 GB a process.
    """
    try:
        return (yield)
    finally:
        if _resident_bytes() > item.session.stash.get(_COLLECTED_AT, 0) + GROWTH_BYTES_MAX:
            gc.collect()
            item.session.stash[_COLLECTED_AT] = _resident_bytes()


GROWTH_BYTES_MAX = 128 << 20
_COLLECTED_AT = pytest.StashKey[int]()


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """An empty directory with a short path: a unix socket's path may have 107 bytes, and
    `tmp_path` spends most of them on the test's name."""
    directory = Path(tempfile.mkdtemp(prefix="tc-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_kafka() -> Iterator[kafka_brokers.Brokers]:
    """See `real_kafka`."""
    if kafka_brokers.missing():
        pytest.skip(kafka_brokers.missing())
    with kafka_brokers.brokers() as made:
        yield made


@pytest.fixture
def real_kafka(shared_kafka: kafka_brokers.Brokers) -> Iterator[kafka_brokers.Brokers]:
    """A broker of Apache Kafka that all tests of a worker share; topics have names of their own.

    Java may end, for want of memory or of a disk. The test that runs then fails with the broker's
    last words, and not with a connection that is refused; the next test finds it started again.
    """
    yield shared_kafka
    ended = shared_kafka.ended()
    if ended:
        shared_kafka.restart_ended()
        pytest.fail(f"the broker ended while the test ran: {ended[0]}")


Eventually = Callable[..., None]


@pytest.fixture
def eventually() -> Eventually:
    """Wait for a condition of another thread or process that offers no event to wait on.

    `eventually(lambda: stats().images == 2, "both images", timeout_s=10.0)` returns as soon as the
    condition is true, and fails naming what it waited for. The limit counts progress, so other load
    does not end it (`tests.support.patience`). Time in the test's own process is injected instead;
    see STYLE rule 14 in CONTRIBUTING.md.
    """
    pause = threading.Event()

    def wait(condition: Callable[[], object], what: str, *, timeout_s: float = 10.0) -> None:
        patience = Patience(timeout_s)
        while not condition():
            if patience.over():
                pytest.fail(f"waited {timeout_s:g} s in vain for {what}")
            pause.wait(0.005)

    return wait
