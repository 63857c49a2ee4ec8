"""Streams of a NATS server as a topic of an engine process, and copied by `tidecast mirror`."""

from __future__ import annotations

import pytest
from tests.support.lab import Lab
from tests.support.nats_server import missing, nats_server
from tests.support.patience import wait_until

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def test_an_engine_reads_streams_and_a_mirror_copies_them(lab: Lab) -> None:
    with nats_server() as nats:
        for queue in range(2):
            nats.create(f"S{queue}")
            nats.fill(f"S{queue}.key", [b"%d %d" % (queue, i) for i in range(50)])
        place = f"jetstream://{nats.address}/S0,S1"
        platform = lab.platform(start=False)
        platform.engine = lab.spawn("engine", "--adapter", f"feed={place}", platform=platform)
        assert "ready" in platform.engine.line()
        rows = platform.json("queue", "list", "feed")
        assert [(row["adapter"], row["earliest_token"], row["next_token"]) for row in rows] == [
            ("jetstream", 1, 51)
        ] * 2
        client = platform.connect()
        with client.consumer("feed", "reader") as consumer:
            found: list[bytes] = []
            while len(found) < 100:
                for message in consumer.fetch(100, max_wait=30.0):
                    data = bytes(message.data)
                    assert message.key == b"S%s.key" % data.split()[0]
                    found.append(data)
                    message.ack()
        for queue in range(2):
            mine = [one for one in found if one.startswith(b"%d " % queue)]
            assert mine == [b"%d %d" % (queue, i) for i in range(50)]

        platform.run("topic", "create", "copy", "--mode", "durable", "--queues", "2")
        for _ in range(2):  # again: nothing is copied twice
            platform.run("mirror", "--from", place, "--to", "copy", "--once")
            values = [bytes(each.data) for b in client.read("copy").batches() for each in b]
            assert sorted(values) == sorted(found)


def test_an_engine_waits_for_a_server_that_is_away(lab: Lab) -> None:
    with nats_server() as nats:
        nats.create("S")
        nats.fill("S.key", [b"%d" % i for i in range(20)])
        nats.kill()
        platform = lab.platform(start=False)
        feed = f"feed=jetstream://{nats.address}/S"
        platform.engine = lab.spawn("engine", "--adapter", feed, platform=platform)
        assert "ready" in platform.engine.line()
        state = platform.json("topic", "show", "feed")
        assert (state["adapter"], state["state"]) == ("jetstream", "waiting")
        assert nats.address in state["detail"]
        nats.start()
        wait_until(
            lambda: platform.json("topic", "show", "feed")["state"] == "open", 60.0, "the adapter"
        )
        with platform.connect().consumer("feed", "reader") as consumer:
            found: list[bytes] = []
            while len(found) < 20:
                found += [bytes(message.data) for message in consumer.fetch(20, max_wait=30.0)]
            assert found == [b"%d" % i for i in range(20)]
