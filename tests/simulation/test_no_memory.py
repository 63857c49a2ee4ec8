"""A receiver without shared memory for a publisher's ring says so, and takes it up later."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
from tests.support.simulation import Reader, Stream, network_of

from tidecast import Earliest, Latest
from tidecast.buffers.recorder import read_records
from tidecast.events import PublisherRefused, TopicConflict
from tidecast.native.mapped import MappedFile
from tidecast.testing import Network


class Shm:
    """Room for ``rings`` more files, -1: for any."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.rings, self.refused, self._allocate = -1, 0, os.posix_fallocate
        patch.setattr("tidecast.native.mapped.os.posix_fallocate", self)

    def __call__(self, *args: Any) -> None:
        if self.rings == 0:
            self.refused += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        self.rings -= 1
        self._allocate(*args)


@pytest.fixture
def shm(monkeypatch: pytest.MonkeyPatch) -> Shm:
    return Shm(monkeypatch)


def test_it_is_told_once_and_the_session_begins_when_there_is_room(shm: Shm) -> None:
    with Network(seed=1) as net:
        a, b = network_of(net, "ab")
        reader, stream = Reader(b), Stream(a, count=20)
        shm.rings = 0
        stream.push()
        net.run(5_000_000)
        assert not reader.take()
        assert not reader.events(TopicConflict)
        [told] = reader.events(PublisherRefused)
        assert (told.topic, told.node, told.session) == ("t", "a", stream.publisher.session)
        assert f"no room for {told.bytes} bytes" in told.detail
        assert "docker run --shm-size" in told.detail
        assert "lower history_bytes and receive_bytes" in told.detail
        assert 2 <= shm.refused <= 6, "it is tried each second"
        alerts = [
            r.text
            for r in read_records(MappedFile.open(b.engine.recorder_path).array)
            if r.section == "alert"
        ]
        assert len(alerts) == 1
        assert alerts[0].startswith(f"no memory for a ring source={a.id} bytes={told.bytes} used=0")
        shm.rings = -1
        stream.count = 25
        stream.push()
        net.run(2_000_000)
        reader.take()
        assert reader.found == stream.messages
        assert not reader.gaps


def test_what_history_lost_meanwhile_is_a_gap(shm: Shm) -> None:
    with Network(seed=2) as net:
        a, b = network_of(net, "ab", history_bytes=1 << 17)
        reader, stream = Reader(b), Stream(a, count=300, size=1300)
        shm.rings = 0
        while not stream.push(20):
            net.run(100_000)
        shm.rings = -1
        net.run(3_000_000)
        reader.take()
        assert reader.found
        assert reader.found == stream.messages[-len(reader.found) :]
        assert sum(end - first for first, end in reader.gaps) == 300 - len(reader.found)


def test_one_of_two_images_of_a_session_has_no_room(shm: Shm) -> None:
    with Network(seed=3) as net:
        a, b = network_of(net, "ab")
        first, second, stream = Reader(b, start=Latest()), Reader(b, start=Earliest()), Stream(a)
        shm.rings = 1
        stream.count = 10
        stream.push()
        net.run(500_000)
        first.take()
        second.take()
        assert (first.found, second.found) == (stream.messages, [])
        shm.rings = -1
        net.run(3_000_000)
        first.take()
        second.take()
        assert (first.found, second.found) == (stream.messages, stream.messages)
        assert len(b.engine.images_by_id) == 2
