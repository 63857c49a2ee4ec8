"""Which kernels are compiled before a node starts, in which processes, and who waits for them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tidecast.agents import kernels, warmup
from tidecast.agents.warmup import ALL, DURABLE, LIVE, REMOTE
from tidecast.config.topology import topology_from
from tidecast.errors import TidecastError


class Child:
    """Stands for a process that compiles."""

    made: list[Child]

    def __init__(self, names: list[str], nice: int) -> None:
        self.names, self.nice, self.stopped = names, nice, False
        Child.made.append(self)

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> warmup._Compiling:
    """With an empty cache, and children that do nothing."""
    Child.made = []
    monkeypatch.setattr(warmup, "_Child", Child)
    monkeypatch.setattr(warmup, "_directory", lambda: tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    return warmup._Compiling()


def test_a_topology_names_what_its_node_needs() -> None:
    live = topology_from({"topics": [{"name": "a"}]})
    durable = topology_from({"topics": [{"name": "a"}, {"name": "b", "mode": "durable"}]})
    assert warmup.needed(live) == LIVE
    assert warmup.needed(live, inline=True) == (*LIVE, "inline")
    assert warmup.needed(durable) == DURABLE
    assert warmup.needed(durable, inline=True) == (*DURABLE, "inline")


def test_every_name_is_a_task_of_one_group() -> None:
    grouped = [name for group in warmup._GROUPS for name in group]
    assert sorted(grouped) == sorted(ALL) == sorted(kernels.tasks())
    assert set(REMOTE) <= set(ALL)


def test_groups_are_dealt_to_the_cores_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    for wanted in (LIVE, (*LIVE, "inline"), DURABLE, ALL):
        one, other = warmup._dealt(list(wanted))
        assert sorted(one + other) == sorted(wanted)
        shorter, longer = sorted((warmup._share(one), warmup._share(other)))
        assert longer < 1.6 * shorter, f"{one} and {other}"
    assert warmup._dealt(["log", "archiver"]) == [["archiver", "log"]], "one group, one process"
    assert warmup._dealt([]) == []


def test_a_name_is_compiled_by_one_process(compiling: warmup._Compiling) -> None:
    compiling.begin(LIVE, 0)
    compiling.begin(DURABLE, 10)
    compiling.begin(ALL, 0)
    names = [name for child in Child.made for name in child.names]
    assert sorted(names) == sorted(ALL)
    assert {child.nice for child in Child.made if set(child.names) & set(LIVE)} == {0}


def test_live_topics_wait_for_no_kernel_of_durable_ones(compiling: warmup._Compiling) -> None:
    compiling.begin(DURABLE, 0)
    steps: list[tuple[int, int]] = []
    waiting = threading.Thread(
        target=compiling.wait, args=(LIVE, lambda _, done, total: steps.append((done, total)))
    )
    waiting.start()
    for name in LIVE:
        compiling.compiled(name)
    waiting.join(30)
    assert not waiting.is_alive()
    assert steps[-1] == (len(LIVE), len(LIVE))
    assert set(compiling.missing(DURABLE)) == set(DURABLE) - set(LIVE)


def test_who_waits_for_the_compiler_is_news(
    compiling: warmup._Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warmup, "_COMPILING", compiling)
    compiling.begin(("log", "queues"), 0)
    assert warmup.news() == "", "it compiles, and nobody waits"
    seen: list[str] = []
    waiting = threading.Thread(
        target=warmup.warm_up, args=(lambda *_: seen.append("step"), ("log", "queues"))
    )
    waiting.start()
    while "of" not in warmup.news():
        waiting.join(0.01)
    assert warmup.news() == "it compiles kernels, 0 of 2 groups are done; it does so once a build"
    compiling.compiled("log")
    while "1 of 2" not in warmup.news():
        waiting.join(0.01)
    compiling.compiled("queues")
    waiting.join(30)
    assert warmup.news() == ""
    compiling.begin(("puller",), 0)
    compiling.ended(Child.made[-1], "no such type")  # type: ignore[arg-type]
    with pytest.raises(TidecastError), compiling.waiting():
        compiling.wait(("puller",), warmup._silent)
    assert warmup.news() == ""


def test_what_does_not_compile_is_an_error_and_is_tried_again(
    compiling: warmup._Compiling,
) -> None:
    compiling.begin(("log",), 0)
    child: Any = Child.made[0]
    compiling.ended(child, "no such type")
    with pytest.raises(TidecastError, match=r"kernels \['log'\] do not compile: no such type"):
        compiling.wait(("log",), warmup._silent)
    compiling.begin(("log",), 0)
    assert [child.names for child in Child.made] == [["log"], ["log"]]
    compiling.compiled("log")
    compiling.wait(("log",), warmup._silent)


def test_another_process_may_have_compiled_it(compiling: warmup._Compiling, tmp_path: Path) -> None:
    for name in LIVE:
        warmup.marker(name).touch()
    compiling.begin(LIVE, 0)
    assert Child.made == []
    assert len(list(tmp_path.iterdir())) == len(LIVE)


def test_a_fork_ends_no_process_of_its_parent(
    compiling: warmup._Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling.begin(("log",), 0)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    compiling.stop()
    assert not Child.made[0].stopped
    monkeypatch.undo()
    compiling.stop()
    assert Child.made[0].stopped


FIRST_MESSAGES = """
import os
import tidecast.sync
from tidecast.agents import warmup
from tidecast.native import compiling

here, run_pass = os.getpid(), compiling._Lowering.run_pass

def counted(self, state):
    print("compiled in this process:", state.func_id.func_qualname)
    return run_pass(self, state)

compiling._Lowering.run_pass = counted
with tidecast.sync.connect("embedded://") as client:
    with client.subscribe("live") as messages:
        client.publish("live", b"first", flush=True)
        print(messages.next(timeout=60).data)
    print("durable ones:", warmup.is_warm(warmup.DURABLE))
    client.topics.create("orders", mode="durable")
    client.publish("orders", b"second", ack="durable")
    with client.consumer("orders", "billing") as consumer:
        print(consumer.next(timeout=60).data)
    print("durable ones:", warmup.is_warm(warmup.DURABLE))
"""


@pytest.mark.long
def test_a_fresh_machine_compiles_what_the_first_message_needs(tmp_path: Path) -> None:
    """And nothing of it in the process that waits."""
    environment = {**os.environ, "TIDECAST_CACHE_DIR": str(tmp_path / "kernels")}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_MESSAGES],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "b'first'",
        "durable ones: False",
        "b'second'",
        "durable ones: True",
    ]


def test_the_compiler_is_limited_by_its_cpu_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A limit of 600 s by the clock ended them where 30 other processes computed."""
    (tmp_path / "endless.py").write_text("while True: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(warmup, "_KERNELS", "endless")
    monkeypatch.setattr(warmup, "COMPILE_CPU_S", 1)
    monkeypatch.setattr(warmup, "_COMPILING", compiling := warmup._Compiling())
    monkeypatch.setattr(warmup, "_directory", lambda: tmp_path)
    compiling.begin(("log",), 0)
    with pytest.raises(TidecastError, match=r"do not compile: they took more CPU time .* 1 s"):
        compiling.wait(("log",), warmup._silent)


def test_a_lower_limit_of_the_user_stays() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (7, 9))
            warmup._limit_cpu(process.pid)
            assert resource.prlimit(process.pid, resource.RLIMIT_CPU) == (7, 9)
        finally:
            process.kill()
    warmup._limit_cpu(process.pid)  # it has ended
