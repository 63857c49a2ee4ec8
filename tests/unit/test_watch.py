"""The processes that `up` starts again, when, and by which supervisor."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.fake_node import FakeNode
from tests.unit.test_cli import node

from tidecast.cli import Failure, main
from tidecast.cli import engine as engine_module
from tidecast.cli.processes.watch import (
    BACKOFF_S_MAX,
    BACKOFF_S_MIN,
    LOCK_NAME,
    SOUND_S,
    Keeper,
    hold,
    watching_pid,
)

__all__ = ["node"]


class Watched:
    """One that runs as long as it is told to."""

    name = "engine"

    def __init__(self) -> None:
        self.up = True
        self.starts: list[float] = []
        self.now_s = 0.0
        self.problem: Exception | None = None

    def runs(self) -> bool:
        return self.up

    def start(self) -> None:
        self.starts.append(self.now_s)
        if self.problem is not None:
            raise self.problem


def test_what_is_missing_is_started_at_once_and_then_with_back_off() -> None:
    half, told = Watched(), list[str]()
    keeper = Keeper(half, told.append)

    def look(now_s: float) -> None:
        half.now_s = now_s
        keeper.look(now_s)

    look(0.0)
    half.up = False
    half.problem = Failure("no room")
    for tenth in range(10, 1500):
        look(tenth / 10)
    assert half.starts[0] == 1.0
    pauses = [after - before for before, after in zip(half.starts, half.starts[1:], strict=False)]
    assert pauses[:5] == pytest.approx([BACKOFF_S_MIN * 2**n for n in range(5)], abs=0.11)
    assert max(pauses) == pytest.approx(BACKOFF_S_MAX, abs=0.11)
    assert told[:2] == [
        "the engine is missing: it is started again",
        "the engine does not start: no room",
    ]
    half.up = True
    look(200.0)
    look(200.0 + SOUND_S)
    half.up = False
    look(300.0)
    assert half.starts[-1] == 300.0, "what ran for long is started at once"


def test_one_watches_a_data_directory(tmp_path: Path) -> None:
    assert watching_pid(tmp_path) is None
    lock = hold(tmp_path)
    assert lock is not None
    assert hold(tmp_path) is None
    assert watching_pid(tmp_path) == os.getpid()
    lock.close()
    assert watching_pid(tmp_path) is None
    assert (tmp_path / LOCK_NAME).read_text() == f"{os.getpid()}\n"


def test_up_starts_the_half_that_is_missing(
    tmp_path: Path, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said "already up", while nobody served the page."""
    started: list[Any] = []

    class Service:
        url = "http://127.0.0.1:7580"

    def start(_data_dir: Path, port: int, _topology_file: Path | None) -> Service:
        started.append(port)
        return Service()

    monkeypatch.setattr(engine_module, "_start_service", start)
    linked = {"url": "ws://127.0.0.1:7580/api/v1/engine", "credential": "tcn_x"}
    (tmp_path / "control.json").write_text(json.dumps(linked))
    done = CliRunner().invoke(main, ["up", "--data-dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert started == [7580], "the port that the engine connects to"
    assert "control service: http://127.0.0.1:7580" in done.output
