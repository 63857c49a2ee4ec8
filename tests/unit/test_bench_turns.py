"""Benches end in time, and keep their workers from one turn to the next."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tidecast.bench import measure
from tidecast.bench.measure import Deadline, Worker, one_turn, ready, turns_within
from tidecast.bench.workers import process, registry
from tidecast.errors import Timeout


@pytest.mark.parametrize(
    ("turn_s", "turns"),
    [((1.0,), 5), ((4.0,), 2), ((1.0, 5.0), 2), ((20.0,), 1), ((9.0, 0.5), 1)],
)
def test_turns_end_within_the_deadline_and_one_is_always_tried(
    monkeypatch: pytest.MonkeyPatch, turn_s: tuple[float, ...], turns: int
) -> None:
    """A turn begins only if the longest one so far still fits."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    done = []
    for turn in turns_within(Deadline(10.0), 5):
        done.append(turn)
        now[0] += turn_s[min(turn, len(turn_s) - 1)]
    assert done == list(range(turns))
    assert now[0] <= 10.0 or done == [0]


def test_a_role_that_is_a_generator_measures_until_its_input_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = []

    def role(first: int) -> Iterator[dict[str, Any]]:
        try:
            while True:
                ready()
                yield {"turn": first}
                first += 1
        finally:
            ended.append(first)

    monkeypatch.setitem(registry.ROLES, "counting", role)
    monkeypatch.setattr(sys, "argv", ["process", "counting", json.dumps({"first": 7})])
    monkeypatch.setattr(sys, "stdin", io.StringIO("go\ngo\n"))
    with pytest.raises(SystemExit) as end:
        process.main()
    assert end.value.code == 0
    told = capsys.readouterr().out.splitlines()
    assert told == ["ready", '{"turn": 7}', "ready", '{"turn": 8}', "ready"]
    assert ended == [9], "what it has open is closed"


def test_a_silent_worker_is_named_and_left_behind_by_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "END_S", 0.05)
    silent = Worker("subscribe_compiled", prefix=("sh", "-c", "exec sleep 1000"))
    said = "bench worker subscribe_compiled said nothing for 0 s"
    try:
        with pytest.raises(Timeout, match=said):
            silent.wait_ready(0.05)
        with pytest.raises(Timeout, match=said):
            one_turn(Deadline(0.05), silent)
    finally:
        silent.stop()
    assert silent.process.poll() is not None
