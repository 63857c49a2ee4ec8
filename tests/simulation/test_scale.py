"""Many topics, many messages, long runs."""

from __future__ import annotations

import pytest
from tests.support.simulation import Reader, Stream, network_of, transfer

from tidecast.config.topology import TopicConfig
from tidecast.testing import Network


@pytest.mark.parametrize("count", [512, pytest.param(4096, marks=pytest.mark.long)])
def test_many_topics_on_one_transport(count: int) -> None:
    with Network(seed=1, drop=0.01, inbox_packets=32_768) as net:
        topics = [
            TopicConfig(name=f"t{i}", id=i + 1, history_bytes=16 << 10, receive_bytes=16 << 10)
            for i in range(count)
        ]
        a, b = net.node("a", topics=topics), net.node("b", topics=topics)
        reader = Reader(b, "*")
        client = a.connect()
        publishers = [client.publisher(f"t{i}") for i in range(count)]
        for turn in range(2):
            for i, publisher in enumerate(publishers):
                publisher.publish(b"%d:%d" % (turn, i))
            net.run(100_000, step_us=400)
            reader.take()
        net.run(300_000, step_us=1000)
        reader.take()
        assert sorted(reader.found) == sorted(
            b"%d:%d" % (turn, i) for turn in range(2) for i in range(count)
        )
        assert len(b.engine.images_by_id) == count


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_soak(seed: int) -> None:
    """Everything at once, for many seeds: three publishers, four readers, all faults."""
    with Network(
        seed=seed, drop=0.05, duplicate=0.02, reorder=0.05, delay_us=10 * (seed + 1)
    ) as net:
        nodes = network_of(net, "abcd", history_bytes=1 << 18, receive_bytes=1 << 18)
        readers = [Reader(node) for node in nodes]
        net.run(1000)
        sizes = (100, 1300, 9000)
        streams = [
            Stream(node, count=3000, size=size, name=node.name)
            for node, size in zip(nodes, sizes, strict=False)
        ]
        cut = [False]

        def weather() -> bool:
            if net.now_ns // 500_000_000 % 4 == 3 and not cut[0]:
                net.partition("a", "d")
                cut[0] = True
            elif net.now_ns // 500_000_000 % 4 == 0 and cut[0]:
                net.heal()
                cut[0] = False
            for stream in streams:
                stream.push(5)
            for reader in readers:
                reader.take()
            return all(len(reader.found) >= 9000 for reader in readers)

        assert transfer(net, [], [], until=weather, limit_us=60_000_000)
        for reader in readers:
            for stream in streams:
                mark = f"{stream.name}:".encode()
                assert [m for m in reader.found if m.startswith(mark)] == stream.messages
