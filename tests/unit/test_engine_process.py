"""The engine process's files: lock, state, socket; starting, stopping, kill -9."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.project import ROOT
from tests.support.fake_node import FakeNode

from tidecast.client.links.socket_session import EngineControl
from tidecast.config.topology import default_topology, load_topology, topology_path
from tidecast.engine.process import (
    Engine,
    EngineLock,
    choose_topology,
    read_state,
    running_pid,
    stop_engine,
)
from tidecast.errors import AuthError, ConfigError, Conflict, EngineNotRunning, NotFound, Timeout
from tidecast.native.system.processes import end_process
from tidecast.node.shm_directory import dead_nodes, living_nodes, make_directory


@contextlib.contextmanager
def fake_engine(data_dir: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """``--linger``: its process ends no sooner than its standard input."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.fake_node", str(data_dir), *options],
        stdin=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "engine")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.terminate()
        assert process.stdin is not None
        process.stdin.close()
        process.wait(20)
        process.stdout.close()


def engine(data_dir: Path) -> Engine:
    return Engine(data_dir, default_topology(), node_factory=FakeNode)


def test_start_and_stop_leave_nothing(tmp_path: Path) -> None:
    one = engine(tmp_path)
    state = one.start()
    assert state == read_state(tmp_path)
    assert running_pid(tmp_path) == state.pid == os.getpid()
    with EngineControl(tmp_path) as control:
        assert control.welcome.node_name == state.node_name
    one.stop()
    one.stop()
    assert running_pid(tmp_path) is None
    assert read_state(tmp_path) is None
    assert not (tmp_path / "engine.sock").exists()
    one = engine(tmp_path)
    one.start()
    one.stop()


def test_a_second_engine_is_told_who_runs(tmp_path: Path) -> None:
    with fake_engine(tmp_path) as process:
        with pytest.raises(Conflict, match=rf"already \(pid {process.pid}\)"):
            engine(tmp_path).start()
        with EngineControl(tmp_path) as control:
            assert control.topics() == []


def test_a_killed_engine_is_replaced(tmp_path: Path) -> None:
    with fake_engine(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (tmp_path / "engine.sock").exists()
        assert read_state(tmp_path) is not None
        assert running_pid(tmp_path) is None
        with pytest.raises(EngineNotRunning):
            EngineControl(tmp_path)
        one = engine(tmp_path)
        one.start()
        with EngineControl(tmp_path) as control:
            assert control.topics() == []
        one.stop()


def test_a_failed_start_leaves_nothing(tmp_path: Path) -> None:
    class Broken(FakeNode):
        def start(self) -> None:
            super().start()
            raise OSError(98, "Address already in use")

    data_dir, text = tmp_path / "new", "cannot start: Address already in use: `tidecast doctor"
    file = topology_path(data_dir)
    broken = Engine(data_dir, default_topology(), topology_file=file, node_factory=Broken)
    with pytest.raises(ConfigError, match=text):
        broken.start()
    assert running_pid(data_dir) is None
    assert read_state(data_dir) is None
    assert not (data_dir / "shm" / "bells").exists()
    assert not list(data_dir.glob("*.*")), "what this start made"
    good = Engine(data_dir, default_topology(), topology_file=file, node_factory=FakeNode)
    good.start()
    good.stop()
    kept = {"engine.lock", "topology.yaml"}
    assert kept <= {path.name for path in data_dir.iterdir()}
    with pytest.raises(ConfigError, match=text):
        broken.start()
    assert kept <= {path.name for path in data_dir.iterdir()}, "what was there before stays"


def test_a_lock_whose_file_was_taken_along_is_not_held(tmp_path: Path) -> None:
    """Two starts wait for a third that fails: one of them may run, not both."""
    failing, second, third = (EngineLock(tmp_path) for _ in range(3))
    failing.acquire()
    waiting = threading.Thread(target=second.acquire)
    waiting.start()
    failing.undo()
    waiting.join()
    with pytest.raises(Conflict, match="an engine runs"):
        third.acquire()
    assert running_pid(tmp_path) == os.getpid()
    second.release()
    third.acquire()
    third.release()


def test_a_bad_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="choose another with --data-dir"):
        engine(tmp_path / "file").start()


def test_what_belongs_to_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns the directory could put rings of his own in the place of ours."""
    node = tmp_path / "shm" / "1-2"
    os.close(make_directory(node, tmp_path))
    assert node.parent.stat().st_mode & 0o777 == node.stat().st_mode & 0o777 == 0o700
    stranger = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: stranger)
    with pytest.raises(AuthError, match=r"belongs to user .* choose another --data-dir"):
        make_directory(tmp_path / "shm" / "3-4", tmp_path)
    assert [path.name for path in node.parent.iterdir()] == ["1-2"]


def test_an_empty_base_that_another_start_removes_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, mkdir = tmp_path / "shm", Path.mkdir
    removed: list[Path] = []

    def rival(path: Path, *args: Any, **options: Any) -> None:
        if path.parent == base and not removed:
            base.rmdir()
            removed.append(path)
        mkdir(path, *args, **options)

    monkeypatch.setattr(Path, "mkdir", rival)
    os.close(make_directory(base / "1-2", tmp_path))
    assert removed == [base / ".1-2"]
    assert [path.name for path in base.iterdir()] == ["1-2"]


def test_a_base_that_is_removed_before_its_owner_is_known_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, lstat = tmp_path / "shm", Path.lstat
    removed: list[Path] = []

    def rival(path: Path) -> os.stat_result:
        if path == base and not removed:
            base.rmdir()
            removed.append(path)
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", rival)
    os.close(make_directory(base / "1-2", tmp_path))
    assert removed == [base]
    assert [path.name for path in base.iterdir()] == ["1-2"]


def test_a_base_that_is_removed_meanwhile_has_no_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "is_dir", lambda _: True)  # an engine that stops has removed it since
    assert dead_nodes(tmp_path / "shm") == living_nodes(tmp_path / "shm") == []


def test_an_engine_of_another_user_is_not_called_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(AuthError, match="it belongs to another user"):
        running_pid(tmp_path)


def test_stop_engine(tmp_path: Path) -> None:
    with pytest.raises(EngineNotRunning):
        stop_engine(tmp_path)
    with fake_engine(tmp_path) as process:
        assert stop_engine(tmp_path) == process.pid
        assert process.poll() == 0
        assert process.stdout is not None
        assert process.stdout.read() == "stopped\n"
        assert read_state(tmp_path) is None
    assert running_pid(tmp_path) is None


def test_an_engine_has_stopped_when_its_process_has_ended(tmp_path: Path) -> None:
    """Not when its lock is free: its sockets and its memory are still there."""
    with fake_engine(tmp_path, "--linger") as process:
        with pytest.raises(Timeout, match=rf"pid {process.pid}\) did not stop"):
            stop_engine(tmp_path, timeout_s=1.0)
        assert process.stdout is not None
        assert process.stdout.readline() == "stopped\n"
        assert running_pid(tmp_path) is None


def test_a_process_that_is_another_is_not_ended(tmp_path: Path) -> None:
    with fake_engine(tmp_path) as process:
        assert end_process(process.pid, lambda: False, 20.0)
        assert process.poll() is None
        process.kill()
        process.wait()
        assert end_process(process.pid, lambda: True, 0.0) is False, "its lock has another holder"
        assert end_process(process.pid, lambda: False, 0.0)


def test_a_signal_that_another_thread_receives_stops_the_engine(tmp_path: Path) -> None:
    """The kernel gives a signal of the process to any thread; Python handles it in the main one."""
    with fake_engine(tmp_path) as process:
        others = [int(each.name) for each in Path(f"/proc/{process.pid}/task").iterdir()]
        others.remove(process.pid)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.tgkill(process.pid, others[0], int(signal.SIGTERM)) == 0
        assert process.wait(20) == 0
        assert process.stdout is not None
        assert process.stdout.read() == "stopped\n"


def test_the_topology_is_found_or_made(tmp_path: Path) -> None:
    topology, path = choose_topology(tmp_path, None)
    assert path == topology_path(tmp_path)
    assert (
        topology.transports[0].platform != choose_topology(tmp_path, None)[0].transports[0].platform
    )
    assert not path.exists(), "an engine that starts saves it"
    one = Engine(tmp_path, topology, topology_file=path, node_factory=FakeNode)
    one.start()
    one.stop()
    assert load_topology(path) == topology
    path.unlink()
    older = choose_topology(tmp_path, None)[0]
    assert older == default_topology(), "an engine ran here: its group and port stay"
    path.write_text("node: {id: 9}")
    assert choose_topology(tmp_path, None)[0].transports == default_topology().transports
    assert choose_topology(tmp_path, None)[0].node.id == 9
    with pytest.raises(NotFound):
        choose_topology(tmp_path, tmp_path / "none.yaml")


def test_state_that_is_not_sound(tmp_path: Path) -> None:
    (tmp_path / "engine.json").write_text("{")
    assert read_state(tmp_path) is None
