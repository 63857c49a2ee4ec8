"""`tidecast up` keeps engine and control service running, whatever is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from tests.conftest import Eventually
from tests.support import patience

from tidecast.cli.control import service_state
from tidecast.cli.processes.watch import watching_pid
from tidecast.config.topology import load_topology, topology_path
from tidecast.engine.process import running_pid

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


def _run(data_dir: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "tidecast.cli", *arguments, "--data-dir", str(data_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def foreground(short_dir: Path, eventually: Eventually) -> Iterator[subprocess.Popen[bytes]]:
    """`up` in the foreground, once its engine runs."""
    command = [sys.executable, "-m", "tidecast.cli", "up", "--port", "0"]
    with (short_dir / "out").open("wb") as output:
        process = subprocess.Popen(
            [*command, "--data-dir", str(short_dir)], stdout=output, stderr=subprocess.STDOUT
        )
    eventually(lambda: "Ctrl-C stops" in _said(short_dir), "the engine", timeout_s=180)
    yield process
    process.kill()
    process.wait()
    _run(short_dir, "down")


def _said(data_dir: Path) -> str:
    return (data_dir / "out").read_text()


def _left(data_dir: Path) -> list[Any]:
    return [running_pid(data_dir), service_state(data_dir), watching_pid(data_dir)]


@pytest.fixture
def data_dir(short_dir: Path) -> Iterator[Path]:
    """A platform in the background."""
    _run(short_dir, "up", "--detach", "--port", "0")
    yield short_dir
    _run(short_dir, "down")
    assert _left(short_dir) == [None, None, None]


def _service(data_dir: Path) -> dict[str, Any]:
    found = service_state(data_dir)
    assert found is not None
    return found


def test_the_half_that_was_killed_is_there_again(data_dir: Path, eventually: Eventually) -> None:
    first = _service(data_dir)
    engine = running_pid(data_dir)
    assert engine is not None
    os.kill(first["pid"], signal.SIGKILL)

    def another() -> bool:
        found = service_state(data_dir)
        return found is not None and found["pid"] != first["pid"]

    eventually(another, "another service", timeout_s=120)
    assert _service(data_dir)["url"] == first["url"]
    assert running_pid(data_dir) == engine
    os.kill(engine, signal.SIGKILL)
    eventually(lambda: running_pid(data_dir) not in (None, engine), "an engine", timeout_s=120)

    def nodes_up() -> bool:
        text = httpx.get(f"{first['url']}/metrics", timeout=30).text
        return re.search(r'tidecast_node_up\{node="[^"]+"\} 1\.0', text) is not None

    eventually(nodes_up, "the engine at the service", timeout_s=120)
    said = (data_dir / "up.log").read_text()
    assert "the control service is missing: it is started again" in said
    assert "the engine is missing: it is started again" in said


def test_up_again_brings_back_what_is_missing(data_dir: Path, eventually: Eventually) -> None:
    """Also when nobody watches any more."""
    eventually(lambda: watching_pid(data_dir), "the watch")
    watcher = watching_pid(data_dir)
    assert watcher
    os.kill(watcher, signal.SIGKILL)
    eventually(lambda: watching_pid(data_dir) is None, "the end of the watch")
    url = _service(data_dir)["url"]
    os.kill(_service(data_dir)["pid"], signal.SIGKILL)
    eventually(lambda: service_state(data_dir) is None, "the end of the service")
    assert f"control service: {url}" in _run(data_dir, "up", "--detach")
    assert httpx.get(f"{url}/health/live", timeout=30).status_code == 200
    eventually(lambda: watching_pid(data_dir), "the watch")


def test_up_in_the_foreground_starts_a_killed_engine_again(
    foreground: subprocess.Popen[bytes], short_dir: Path, eventually: Eventually
) -> None:
    for _ in range(2):
        engine = running_pid(short_dir)
        assert engine not in (None, foreground.pid)
        assert engine is not None
        os.kill(engine, signal.SIGKILL)
        eventually(
            lambda dead=engine: running_pid(short_dir) not in (None, dead),
            "an engine",
            timeout_s=120,
        )
        top = [sys.executable, "-m", "tidecast.cli", "top", "--once", "--data-dir", str(short_dir)]
        eventually(lambda top=top: patience.run(top, 60)[0] == 0, "it serves", timeout_s=60)
    assert "the engine is missing: it is started again" in _said(short_dir)
    assert foreground.poll() is None
    foreground.send_signal(signal.SIGINT)
    assert foreground.wait(60) == 0
    assert _left(short_dir) == [None, None, None]
    assert _said(short_dir).rstrip().endswith("stopped")


def test_down_ends_up_in_the_foreground(
    foreground: subprocess.Popen[bytes], short_dir: Path
) -> None:
    engine, service = running_pid(short_dir), _service(short_dir)["pid"]
    said = _run(short_dir, "down")
    assert f"stopped engine pid {engine}" in said
    assert f"stopped control service pid {service}" in said
    assert foreground.wait(60) == 0
    assert _left(short_dir) == [None, None, None]


def test_up_ends_with_an_engine_that_cannot_start(short_dir: Path) -> None:
    (short_dir / "topology.yaml").write_text("topics: 7")
    command = [sys.executable, "-m", "tidecast.cli", "up", "--no-control"]
    done = subprocess.run(
        [*command, "--data-dir", str(short_dir)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 1
    assert "topics" in done.stderr
    assert _left(short_dir) == [None, None, None]


def test_two_platforms_that_start_at_once_share_nothing(short_dir: Path) -> None:
    """Neither ports nor groups; and both say the password of their first run."""
    places = [short_dir / "a", short_dir / "b"]
    command = [sys.executable, "-m", "tidecast.cli", "up", "--detach", "--data-dir"]
    starting = [
        subprocess.Popen([*command, str(each)], stdout=subprocess.PIPE, text=True)
        for each in places
    ]
    try:
        said = [process.communicate(timeout=300)[0] for process in starting]
        for pattern in (r"control service: (\S+)", r"password (\S+)", r"multicast (\S+),"):
            found = [re.findall(pattern, text) for text in said]
            assert [len(each) for each in found] == [1, 1], said
            assert found[0] != found[1]
        files = [load_topology(topology_path(each)).transports[0] for each in places]
        assert files[0].platform != files[1].platform
        for each in places:
            findings = json.loads(_run(each, "doctor", "--json"))["findings"]
            [strangers] = [f for f in findings if f["check"] == "strangers on multicast"]
            assert strangers["status"] == "ok"
    finally:
        for process, each in zip(starting, places, strict=True):
            process.kill()
            _run(each, "down")


def test_a_port_that_is_in_use_costs_no_password(short_dir: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        command = [sys.executable, "-m", "tidecast.cli", "up", "--detach", "--port", port]
        refused = subprocess.run(
            [*command, "--data-dir", str(short_dir)], capture_output=True, text=True, check=False
        )
        assert refused.returncode == 1
        assert f"could not start on 127.0.0.1:{port}: choose another port" in refused.stderr
    try:
        assert "first run: log in as admin" in _run(short_dir, "up", "--detach", "--port", "0")
    finally:
        _run(short_dir, "down")


def test_files_of_the_users_directory_are_not_imported(tmp_path: Path) -> None:
    """A script of a common name there, such as `socket.py`, ended the engine and the service."""
    work, data_dir = tmp_path / "work", tmp_path / "data"
    work.mkdir()
    (work / "socket.py").write_text("raise SystemExit('the script of the user ran')\n")
    command = [sys.executable, "-P", "-m", "tidecast.cli"]
    where = ["--data-dir", str(data_dir)]
    try:
        up = [*command, "up", "--detach", "--no-control", *where]
        code, text = patience.run(up, 100, cwd=work)
        assert code == 0, text
    finally:
        patience.run([*command, "down", *where], 60, cwd=work)
