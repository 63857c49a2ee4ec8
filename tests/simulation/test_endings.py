"""Topics that are deleted or recreated under a publisher: what it published is sent, or counted."""

from __future__ import annotations

import pytest
from tests.support.simulation import Reader, Stream, network_of, transfer

from tidecast.buffers.recorder import read_records
from tidecast.errors import Closed
from tidecast.events import MessagesUnsent, PublicationEnded
from tidecast.layout.recorder import Code
from tidecast.native.mapped import MappedFile
from tidecast.node.live.publications import ENDING_PATIENCE_S
from tidecast.testing import Network, SimulatedNode

PATIENCE_US = (ENDING_PATIENCE_S + 0.5) * 1e6


def cut_of(node: SimulatedNode) -> dict[str, int]:
    [row] = node.engine.stats()["node"]
    return {name: row[name] for name in row if name.endswith("_cut")}


@pytest.mark.parametrize("anew", [False, True])
def test_what_was_published_before_the_end_arrives(anew: bool) -> None:
    with Network(seed=1, drop=0.05, delay_us=50) as net:
        a, b = network_of(net, "ab")
        reader = Reader(b)
        net.run(20_000)
        stream = Stream(a, count=500, rate_packets_per_s=2_000)  # most of it waits in the ring
        transfer(net, [stream], [reader], until=stream.push)
        config = a.engine.topic("t")
        a.engine.delete_topic("t")
        if anew:
            a.engine.create_topic(config)
        stream.client.pump()
        with pytest.raises(Closed, match="deleted or recreated"):
            stream.publisher.publish(b"too late")
        [ended] = stream.events(PublicationEnded)
        assert ended.code == "closed"
        assert net.run(until=lambda: reader.take() * 0 + len(reader.found) == 500)
        assert reader.found == stream.messages
        assert net.run(5_000_000, until=lambda: not a.engine.pubs)
        assert cut_of(a) == {}


def test_a_subscriber_of_another_node_reads_what_has_arrived_and_holds_nobody_up() -> None:
    with Network(seed=5, delay_us=50) as net:
        a, b, c = network_of(net, "abc", flow="min", history_bytes=1 << 17)
        reader, other = Reader(b), Reader(c)
        pattern = Reader(b, ">")
        net.run(20_000)
        stream = Stream(a, count=50)
        assert transfer(net, [stream], [other], until=lambda: len(other.found) == 50)
        b.engine.delete_topic("t")
        reader.take()
        with pytest.raises(Closed, match="topic t: it was deleted"):
            reader.subscription.poll()
        assert reader.found == stream.messages
        stream.count = 300  # more than a ring holds: nobody may wait for the reader of b
        assert transfer(net, [stream], [other, pattern], limit_us=1_000_000.0)
        assert len(reader.found) == 50
        assert (pattern.found, other.found) == (stream.messages, stream.messages)


def test_a_writer_that_does_not_stop_is_cut_off_and_its_messages_are_counted() -> None:
    with Network(seed=2, delay_us=50) as net:
        a, b = network_of(net, "ab")
        reader, watcher = Reader(b), a.connect()
        net.run(20_000)
        stream = Stream(a, count=20)
        assert transfer(net, [stream], [reader])
        a.engine.delete_topic("t")
        net.run(PATIENCE_US)
        stream.count = 30
        stream.push()  # it looks at nothing but its ring
        net.run(1_000_000)
        assert a.engine.pubs
        stream.client.pump()
        assert net.run(60_000_000, until=lambda: not a.engine.pubs)
        reader.take()
        assert reader.found == stream.messages[:20], "what was counted as lost was delivered"
        size = 10 * 1000
        assert cut_of(a) == {
            "publications_cut": 1,
            "packets_cut": 10,
            "messages_cut": 10,
            "bytes_cut": size,
        }
        events = []
        while (event := watcher.take_event()) is not None:
            events.append(event)
        [told] = [event for event in events if isinstance(event, MessagesUnsent)]
        assert (told.topic, told.messages, told.bytes) == ("t", 10, size)
        records = read_records(MappedFile.open(a.engine.recorder_path).array)
        [alert] = [each for each in records if each.code == Code.PUBLICATION_CUT]
        assert (alert.section, alert.arguments[1]) == ("alert", 10)


def test_what_a_rate_limit_keeps_from_being_sent_after_the_close_is_counted() -> None:
    with Network(seed=3, step_us=1000) as net:
        a, b = network_of(net, "ab")
        reader = Reader(b)
        net.run(20_000)
        stream = Stream(a, count=1000, rate_packets_per_s=10)
        transfer(net, [stream], [reader], until=stream.push)
        stream.publisher.close()
        assert net.run(60_000_000, until=lambda: not a.engine.pubs)
        net.run(1_000_000)
        reader.take()
        assert 0 < len(reader.found) < 1000
        assert cut_of(a)["messages_cut"] == 1000 - len(reader.found)


def test_a_collected_message_that_finds_no_room_at_the_end_is_dropped_and_told() -> None:
    with Network(seed=4) as net:
        [a] = network_of(net, "a", history_bytes=1 << 17)
        client = a.connect()
        publisher = client.publisher("t", rate_packets_per_s=1)
        while publisher.try_publish(b"x" * 1300):
            pass
        publisher.buffering = True
        publisher._collected.extend([b"y" * 1300] * 3)
        a.engine.delete_topic("t")
        client.pump()
        assert publisher.stats().dropped == 3
        assert not client.health().healthy
