"""A process with an embedded node removes the files of a killed one when it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

CHILD = """
import sys
from tidecast import sync
client = sync.connect("embedded://", mode="inline")
print(client.link.node.data_dir, client.link.node.directory, flush=True)
sys.stdin.read()
"""


def test_the_next_embedded_node_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert child.stdout is not None
    data_dir, directory = map(Path, child.stdout.readline().split())
    assert data_dir.parent == tmp_path
    assert [data_dir.is_dir(), directory.is_dir()] == [True, True]
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert [data_dir.is_dir(), directory.is_dir()] == [True, True]
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input="",
        capture_output=True,
        text=True,
        env=environment,
        check=True,
        timeout=120,
    )
    mine, _ = map(Path, done.stdout.split())
    assert mine != data_dir
    assert not data_dir.exists()
    assert not directory.exists()
    assert not mine.exists()
