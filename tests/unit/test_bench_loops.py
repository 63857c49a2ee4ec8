"""Loops of the benches' floor end when nothing comes, and count no time that they waited."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tidecast.bench.loops import floor
from tidecast.bench.workers import floor as workers
from tidecast.errors import Timeout
from tidecast.native.mapped import MappedFile
from tidecast.transport.wire_io import KIND_UDP, receive_io

SILENCE_NS = 20_000_000
SLOTS, MESSAGE_BYTES = 4, 64


def shared() -> np.ndarray:
    return np.zeros(1 << 14, dtype=np.uint8)


def scratch() -> np.ndarray:
    return np.zeros(64, dtype=np.uint8)


@pytest.mark.parametrize("packets", [0, 1, 3])
def test_the_silence_after_the_last_packet_does_not_count(packets: int) -> None:
    """Without a packet the time was that since the host started."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.bind(("127.0.0.1", 0))
        for _ in range(packets):
            end.sendto(bytes(100), end.getsockname())
        rx = receive_io(KIND_UDP, end.fileno())
        counts = np.zeros(3, dtype=np.int64)
        floor.soak(rx.words, 60 * 10**9, SILENCE_NS, scratch(), counts)
    assert counts[:2].tolist() == [packets, 100 * packets]
    assert 0 <= counts[2] < SILENCE_NS


def test_a_writer_ends_when_its_reader_is_gone() -> None:
    memory, source = shared(), np.ones(MESSAGE_BYTES, dtype=np.uint8)
    done = floor.memory_write(
        memory, SLOTS, source, MESSAGE_BYTES, 60 * 10**9, SILENCE_NS, scratch()
    )
    assert done == floor.ALONE
    assert int(memory[floor.MEMORY_HEAD_AT :][:8].view(np.int64)[0]) == SLOTS


@pytest.mark.parametrize("written", [0, 3])
def test_a_reader_ends_when_its_writer_is_gone(written: int) -> None:
    memory, counts = shared(), np.zeros(3, dtype=np.int64)
    memory[floor.MEMORY_HEAD_AT] = written
    done = floor.memory_read(memory, SLOTS, MESSAGE_BYTES, counts, SILENCE_NS, scratch())
    assert done == floor.ALONE
    assert int(memory[floor.MEMORY_TAIL_AT]) == written, "it has read what there was"
    assert counts.tolist() == [0, 0, 0], "no figures of a run that did not end"


def test_a_reader_gets_all_that_was_written_before_the_end() -> None:
    memory, counts = shared(), np.zeros(3, dtype=np.int64)
    memory[floor.MEMORY_HEAD_AT], memory[floor.MEMORY_STOP_AT] = 3, 1
    assert floor.memory_read(memory, SLOTS, MESSAGE_BYTES, counts, SILENCE_NS, scratch()) == 3
    assert counts[0] == 3


def test_each_side_of_a_ping_pong_ends_when_the_other_is_gone() -> None:
    samples = np.zeros(2, dtype=np.int64)
    assert floor.memory_ping(shared(), 2, samples, SILENCE_NS, scratch()) == floor.ALONE
    assert floor.memory_pong(shared(), 2, SILENCE_NS, scratch()) == floor.ALONE
    memory = shared()
    memory[floor.MEMORY_TAIL_AT] = 1  # as the other side answers
    assert floor.memory_ping(memory, 1, samples, SILENCE_NS, scratch()) == 1


@pytest.mark.parametrize(
    ("role", "about"),
    [
        ("memory_write", {"message_bytes": MESSAGE_BYTES, "duration_s": 60.0}),
        ("memory_read", {"message_bytes": MESSAGE_BYTES}),
        ("memory_pong", {"rounds": 1}),
        ("memory_ping", {"rounds": 1, "save": "nowhere"}),
    ],
)
def test_a_worker_without_its_other_half_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str, about: dict[str, Any]
) -> None:
    monkeypatch.setattr(workers, "SILENCE_NS", SILENCE_NS)
    monkeypatch.setattr(workers, "ready", lambda: None)
    made = MappedFile.create(tmp_path / "shared", 8 << 20)
    with pytest.raises(Timeout, match="the other process of this bench did nothing"):
        getattr(workers, role)(path=str(made.path), **about)
