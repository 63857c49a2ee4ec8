"""Publishing to durable topics: what is acked is in the log, once, in key order, whatever crashes.

The nine defects of the Repeater and Idempotent Receiver have tests by their names.
"""

from __future__ import annotations

import errno
import random
from collections import Counter as Count
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.durable import Platform, platform, rows_of

from tidecast.config.topology import TopicConfig, topology_from
from tidecast.errors import (
    ConfigError,
    ConnectionLost,
    CorruptLog,
    Fenced,
    SequenceGap,
    StorageError,
    Timeout,
)
from tidecast.events import DiskBack, DiskRefused, ProducerFenced, RingDrained, SegmentsDeleted
from tidecast.log.files import segment_name
from tidecast.native.system.files import F_ERRNO, F_ROOM_BYTES, F_SYNC_ERRNO
from tidecast.node.durable.topic import DurableTopic
from tidecast.protocol import dedup


def payloads(one: Platform) -> list[bytes]:
    return [row[3] for row in sorted(rows_of(one.topic), key=lambda row: row[4])]


def set_faults(one: Platform, at: int, value: int, room: int = 0) -> None:
    for table in one.faults:
        table[at], table[F_ROOM_BYTES] = value, room


def kinds(connection: Any) -> list[type]:
    connection.pump()
    return [type(each) for each in connection._events]


# --- what it does -------------------------------------------------------------------------------


def test_keys_headers_and_times_are_kept_in_key_order() -> None:
    with platform(queues=4) as one:
        publisher = one.publisher()
        for i in range(300):
            publisher.publish(
                b"%d" % i, key=b"k%d" % (i % 11), headers={"n": i}, timestamp=1000 + i
            )
        one.run()
        assert publisher.durable_position == publisher.position == 300
        rows = rows_of(one.topic)
        assert len(rows) == 300
        for key in range(11):
            mine = [(q, t, p) for q, t, k, p, _ in rows if k == b"k%d" % key]
            assert len({q for q, _, _ in mine}) == 1, "a key has one queue"
            assert [int(p) for _, _, p in sorted(mine, key=lambda r: r[1])] == list(
                range(key, 300, 11)
            )
        assert len({q for q, *_ in rows}) == 4


def test_long_messages_and_batches() -> None:
    with platform(history_bytes=1 << 22) as one:
        publisher = one.publisher()
        long = np.random.default_rng(1).integers(0, 256, 1_200_000).astype(np.uint8).tobytes()
        sent = [b"a", long, b"b", long[:5000], b""]
        for each in sent:
            publisher.publish(each, key=b"k")
        one.run()
        assert payloads(one) == sent
        result = publisher.publish_batch([b"x%d" % i for i in range(1000)], ack="durable")
        assert result.ok
        assert payloads(one)[5:] == [b"x%d" % i for i in range(1000)]


def test_ack_waits_for_the_sync_and_a_receipt_can_be_asked() -> None:
    with platform(fsync_interval_ms=100) as one:
        publisher = one.publisher()
        publisher.publish(b"a")
        receipt = publisher.receipt()
        one.run(50)
        assert payloads(one) == [b"a"]
        assert not receipt.done, "in the log, and not synced"
        one.run(60)
        assert receipt.done
        assert receipt.wait(timeout=0) == 1
        publisher.publish(b"b")
        with pytest.raises(Timeout, match="message 2 is not durable"):
            publisher.wait_durable(timeout=0)


def test_an_engine_that_stops_under_a_publisher_loses_nothing_and_keeps_its_sequences() -> None:
    """The publisher learns of it only after it has published more."""
    with platform(history_bytes=1 << 20) as one:
        publisher = one.publisher()
        sent = []
        for stop in range(3):
            for i in range(50):
                sent.append(b"%d-%d" % (stop, i))
                publisher.publish(sent[-1])
                if i == 20:
                    one.node.stop()
            one.lose_engine()
            one.restart()
        publisher.wait_durable(timeout=5)
        assert payloads(one) == sent
        assert [row[4] for row in sorted(rows_of(one.topic), key=lambda row: row[4])] == list(
            range(1, len(sent) + 1)
        )
        assert publisher.position == publisher.durable_position == len(sent)


def test_the_policies_differ_in_when_it_is_durable() -> None:
    for policy, syncs in (("none", 0), ("batch", 1)):
        with platform(fsync=policy) as one:
            publisher = one.publisher()
            publisher.publish(b"a")
            one.run(2)
            assert publisher.durable_position == 1
            assert one.counters().get("syncs", 0) == syncs


def test_a_live_topic_has_no_acks() -> None:
    with platform() as one:
        publisher = one.publisher("live")
        with pytest.raises(ConfigError, match="make it durable"):
            publisher.publish(b"a", ack="durable")
        with pytest.raises(ConfigError, match="ack: 'written'"):
            one.publisher().publish(b"a", ack="written")  # type: ignore[arg-type]


def test_closing_drains_and_a_named_producer_goes_on() -> None:
    with platform() as one:
        publisher = one.publisher(producer="p")
        publisher.publish(b"1")
        publisher.close()
        one.run()
        assert not one.durable.sources
        assert not one.node.pubs
        again = one.publisher(producer="p")
        session = again.producer_session
        assert session is not None
        assert (session.epoch, session.first_seq, session.acked_seq) == (2, 2, 1)
        again.publish(b"2")
        one.run()
        assert payloads(one) == [b"1", b"2"]


def test_a_sequence_that_leaves_one_out_is_refused() -> None:
    with platform() as one:
        publisher = one.publisher(producer="p", first_seq=41)
        publisher.publish(b"41")
        one.run()
        with pytest.raises(SequenceGap, match="42 is due") as raised:
            one.publisher(producer="p", first_seq=43)
        assert raised.value.expected == 42


def test_nothing_is_deleted_before_the_slowest_subscription_has_it() -> None:
    with platform(segment_bytes=1 << 16, retention_bytes=1 << 17) as one:
        fast, slow = (one.connect().consumer("orders", name) for name in ("fast", "slow"))

        def take(consumer: Any, n: int) -> None:
            while n > 0:
                batch = consumer.fetch(min(n, 100), 5.0)
                n -= len(batch)
                batch.ack()
            one.run(600)

        publisher = one.publisher()
        for _ in range(60):
            publisher.publish_batch([bytes(1000)] * 10)
            one.run(8)
        take(fast, 600)
        assert one.topic.logs[0].earliest_token == 0
        take(slow, 300)
        assert 0 < one.topic.logs[0].earliest_token <= 300
        slow.close()
        one.run(600)
        assert one.topic.logs[0].earliest_token <= 300, "a subscription needs no member to hold"


def test_retention_deletes_and_never_what_a_subscription_needs() -> None:
    with platform(segment_bytes=1 << 16, retention_bytes=1 << 17) as one:
        publisher = one.publisher()
        one.durable.registry.positions.append(lambda topic, queue: held[0])
        held = [0]
        for _ in range(60):
            publisher.publish_batch([bytes(1000)] * 10)
            one.run(8)
        one.run(600)
        assert one.topic.logs[0].earliest_token == 0
        held[0] = 400
        one.run(600)
        assert 0 < one.topic.logs[0].earliest_token <= 400
        assert SegmentsDeleted in kinds(one.connections[0])
        assert one.counters()["segments_deleted"] > 0
        one.node.edit_topic("orders", {"retention_past_unacked": True})
        one.run(600)
        assert one.topic.logs[0].bytes <= (1 << 17) + (1 << 16)


def test_a_topic_that_is_corrupt_does_not_keep_the_engine_from_starting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with platform(segment_bytes=1 << 16) as one:
        publisher = one.publisher()
        publisher.publish_batch([bytes(1000)] * 200, ack="durable", timeout=5.0)
        one.crash()
        one.connections.clear()
        path = one.directory / "queues" / "orders" / "00000" / segment_name(0)
        raw = bytearray(path.read_bytes())
        raw[3] ^= 1
        path.write_bytes(raw)
        one.start()
        assert "topic orders is not served" in caplog.text
        with pytest.raises(CorruptLog, match="its header is damaged"):
            one.publisher()
        one.publisher("live").publish(b"others go on")
        raw[3] ^= 1
        path.write_bytes(raw)


# --- the disk -----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_is_told_holds_the_ring_and_passes(code: int) -> None:
    with platform(queues=2) as one:
        publisher = one.publisher(on_full="error")
        publisher.publish(b"before", ack="durable", timeout=5.0)
        set_faults(one, F_ERRNO, code, room=40)
        publisher.publish(b"waits")
        one.run(100)
        with pytest.raises(StorageError, match="disk takes no more") as raised:
            publisher.wait_durable(timeout=0)
        assert raised.value.errno == code
        assert DiskRefused in kinds(one.connections[0])
        assert one.counters()["append_failures"] >= 1
        with pytest.raises(StorageError):  # the ring fills up, and says why
            publisher.publish_batch([bytes(1000)] * 10_000).check()
        set_faults(one, F_ERRNO, 0)
        one.run(300)
        publisher.wait_durable(timeout=5.0)
        assert DiskBack in kinds(one.connections[0])
        assert payloads(one)[:2] == [b"before", b"waits"]
        assert len(rows_of(one.topic)) == publisher.position
        assert one.counters().get("errno", 0) == 0


def test_a_sync_that_fails_acks_nothing_and_writes_again() -> None:
    with platform(fsync="batch") as one:
        publisher = one.publisher()
        set_faults(one, F_SYNC_ERRNO, errno.EIO)
        publisher.publish(b"a")
        one.run(30)
        assert publisher.durable_position == 0
        assert DiskRefused in kinds(one.connections[0])
        assert one.counters()["sync_failures"] >= 1
        set_faults(one, F_SYNC_ERRNO, 0)
        one.run(200)
        assert publisher.durable_position == 1
        assert DiskBack in kinds(one.connections[0])
        assert payloads(one) == [b"a"]


# --- defects of the original, by name -----------------------------------------------------------


def test_defect_1_a_second_outstanding_frame_does_not_overwrite_the_first() -> None:
    with platform(queues=3) as one:
        publisher = one.publisher()
        first = publisher.publish_batch([b"1-%d" % i for i in range(500)])
        second = publisher.publish_batch([b"2-%d" % i for i in range(500)])
        assert first.ok
        assert second.ok
        one.crash()
        one.restart()
        one.run()
        assert payloads(one) == [b"%d-%d" % (f, i) for f in (1, 2) for i in range(500)]


def test_defect_2_nothing_is_acked_before_it_is_stored() -> None:
    with platform(fsync="batch") as one:
        publisher = one.publisher()
        set_faults(one, F_SYNC_ERRNO, errno.EIO)
        publisher.publish(b"a")
        one.run(10)
        assert publisher.durable_position == 0
        one.crash()
        one.restart()
        one.run()
        assert publisher.durable_position == 1
        assert payloads(one) == [b"a"]


def test_defect_3_a_mark_without_its_effect_does_not_outlive_a_crash() -> None:
    with platform() as one:
        publisher = one.publisher(producer="p")
        set_faults(one, F_ERRNO, errno.ENOSPC)
        publisher.publish(b"a")
        one.run(10)
        assert int(one.topic.producers.known[dedup.producer_id("p")].marks[0]) == 1
        one.crash()
        one.restart()
        one.run()
        assert payloads(one) == [b"a"]
        assert one.counters().get("duplicates", 0) == 0


def test_defect_4_what_was_freed_leaves_no_counts_behind() -> None:
    with platform(producer_ttl_s=1) as one:
        for _ in range(3):
            publisher = one.publisher(producer="p", first_seq=1)
            publisher.publish(b"a", ack="durable", timeout=5.0)
            assert publisher.durable_position == 1
            publisher.close()
            one.run()
            table = one.topic.producers
            assert len(table.expire(2**62)) == 1
            assert not table.known
        assert len(rows_of(one.topic)) == 3, "forgotten producers begin anew"


def test_a_producer_that_is_idle_in_a_session_is_not_forgotten() -> None:
    """KAFKA-7190: state that expires under an idle producer makes its next message an error."""
    with platform(producer_ttl_s=1) as one:
        publisher = one.publisher(producer="p", first_seq=1)
        publisher.publish(b"a", ack="durable", timeout=5.0)
        assert not one.topic.producers.expire(2**62)
        publisher.publish(b"b", ack="durable", timeout=5.0)
        again = one.publisher(producer="p", first_seq=1)
        again.publish_batch([b"a", b"b", b"c"], ack="durable", timeout=5.0).check()
        assert payloads(one) == [b"a", b"b", b"c"]


def test_defect_5_a_late_duplicate_after_completion_is_dropped() -> None:
    with platform(queues=3) as one:
        for _ in range(2):
            publisher = one.publisher(producer="p", first_seq=1)
            publisher.publish_batch([b"%d" % i for i in range(600)], ack="durable", timeout=5.0)
            publisher.close()
            one.run()
        assert len(rows_of(one.topic)) == 600
        assert one.counters()["duplicates"] == 600


def test_defect_6_a_dead_client_blocks_nobody_and_waits_end() -> None:
    with platform() as one:
        dead, alive = one.publisher(), one.publisher()
        dead.publish(b"dead")
        one.kill(dead.connection)
        alive.publish(b"alive", ack="durable", timeout=5.0)
        one.run()
        assert sorted(payloads(one)) == [b"alive", b"dead"], "a dead client's ring is drained"
        set_faults(one, F_ERRNO, errno.ENOSPC)
        alive.publish(b"x")
        one.run()
        with pytest.raises(Timeout, match="message 2 is not durable") as raised:
            alive.wait_durable(timeout=0.01)
        assert isinstance(raised.value.__cause__, StorageError), "a wait ends and says why"


def test_defect_7_an_engine_that_comes_back_knows_the_epochs() -> None:
    with platform() as one:
        old = one.publisher(producer="p")
        old.publish(b"old", ack="durable", timeout=5.0)
        one.crash()
        one.restart()
        session = old.producer_session
        assert session is not None
        assert session.epoch > 1
        new = one.publisher(producer="p")
        old.connection.pump()
        with pytest.raises(Fenced, match="newer session of the same producer"):
            old.publish(b"zombie")
        assert ProducerFenced in kinds(new.connection)
        new.publish(b"new")
        one.run()
        assert payloads(one) == [b"old", b"new"]


@pytest.mark.parametrize("missing", [1, 2, 99])
def test_producers_are_known_without_the_newest_snapshots(missing: int) -> None:
    """The newest sound one and the segments since tell the same."""
    with platform(queues=1, segment_bytes=1 << 16, history_bytes=1 << 19) as one:
        early = one.publisher(producer="early")
        early.publish_batch([b"early"] * 5, ack="durable").check()
        late = one.publisher(producer="late")
        for i in range(300):
            late.publish(b"%d" % i + bytes(1000))
            if i % 20 == 19:
                one.run(2)
        one.run()
        assert late.durable_position == 300
        kept = sorted(one.topic.logs[0].directory.glob("*.producers"))
        assert len(kept) > 3
        one.crash()
        for n, path in enumerate(kept[-missing:]):
            path.write_bytes(path.read_bytes()[:-1]) if n % 2 else path.unlink()
        one.restart()
        for name, seq in (("early", 5), ("late", 300)):
            found = one.topic.producers.known[dedup.producer_id(name)]
            assert (found.marks.tolist(), found.epoch >= 1) == ([seq], True)


def test_defect_8_an_idle_publisher_s_last_message_becomes_durable_by_itself() -> None:
    with platform(fsync_interval_ms=50) as one:
        publisher = one.publisher()
        publisher.publish(b"open packet")
        one.run(60)
        assert publisher.durable_position == 1


def test_defect_9_who_does_not_own_the_queue_is_fenced_not_silent() -> None:
    with platform() as one:
        other = TopicConfig(name="leased", mode="durable")
        topic = DurableTopic.open(other, one.directory, 0, owner=7)
        log = topic.logs[0]
        from tidecast.log.building import BatchBuilder

        builder = BatchBuilder().begin(owner=7).add(b"x")
        builder.seal(0)
        log.append(builder.buffer, builder.used)
        topic.close()
        with pytest.raises(Fenced, match=r"owns these queues with epoch 7.*lease has 6"):
            DurableTopic.open(other, one.directory, 0, owner=6)


# --- crashes ------------------------------------------------------------------------------------


def test_rings_of_an_engine_and_a_client_that_both_died_are_drained() -> None:
    for spool in (False, True):
        with platform(spool=spool) as one:
            publisher = one.publisher(producer="p")
            publisher.publish_batch([b"%d" % i for i in range(100)])
            one.run(1)
            publisher.publish_batch([b"%d" % i for i in range(100, 200)])
            assert list((one.directory / "spool").glob("pub-*")) == [] or spool
            one.crash()
            one.connections.clear()
            one.start()
            assert payloads(one) == [b"%d" % i for i in range(200)]
            drained = [e for e in one.durable.registry.notified if isinstance(e, RingDrained)]
            assert [e.messages for e in drained] == [200]
            assert not one.durable.sources
            assert not list((one.directory / "spool").glob("pub-*"))
            session = one.publisher(producer="p").producer_session
            assert session is not None
            assert session.first_seq == 201


def test_a_second_engine_that_dies_amid_the_move_leaves_nothing_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its ring has no room for all that the first one's held: both continue, in order."""
    monkeypatch.setattr("tidecast.node.durable.service.Durable._drain_orphans", lambda self: None)
    with platform(history_bytes=1 << 18, fsync="batch") as one:
        publisher = one.publisher(producer="p")
        sent = [b"%d" % i + bytes(1000) for i in range(120)]
        for payload in sent:
            publisher.publish(payload)
        for history_bytes in (1 << 16, 1 << 18):
            one.crash()
            settings = msgspec.to_builtins(one.topology)
            settings["topics"][0]["history_bytes"] = history_bytes
            one.topology = topology_from(settings)
            one.restart()
            assert bool(publisher._moves) == (history_bytes == 1 << 16)
            assert publisher.position == 120
            assert publisher.stats().messages == 120
        sent.append(b"next")
        publisher.publish(b"next", ack="durable", timeout=5.0)
        assert publisher.position == 121
        assert payloads(one) == sent
        stats = publisher.stats()
        assert (stats.messages, stats.bytes) == (121, sum(map(len, sent)))


def test_a_receipt_is_had_while_the_engine_is_lost_and_while_messages_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidecast.node.durable.service.Durable._drain_orphans", lambda self: None)
    with platform(history_bytes=1 << 18, fsync="batch") as one:
        publisher = one.publisher()
        for i in range(120):
            publisher.publish(b"%d" % i + bytes(1000))
        one.crash()
        lost = publisher.receipt()
        settings = msgspec.to_builtins(one.topology)
        settings["topics"][0]["history_bytes"] = 1 << 16
        one.topology = topology_from(settings)
        one.restart()
        assert publisher._moves
        moving = publisher.receipt()
        assert (lost.seq, moving.seq) == (120, 120)
        assert not lost.done
        assert lost.wait(timeout=5.0) >= 120


def test_an_engine_that_dies_while_clients_come_back_is_left_again() -> None:
    with platform() as one:
        connection = one.connect()
        both = [connection.publisher("orders", producer=name, buffer=False) for name in "ab"]
        for publisher in both:
            publisher.publish(b"1")
        one.crash()
        one.start()
        link: Any = connection.link
        link.attach_to(one.node)
        first_only = iter([link.open_publication])

        def open_publication(topic: str, options: Any) -> Any:
            found = next(first_only, None)
            if found is None:
                raise ConnectionLost("it died again")
            return found(topic, options)

        link.open_publication = open_publication
        with pytest.raises(ConnectionLost):
            connection._reopen()
        del link.open_publication
        one.crash()
        one.restart()
        for publisher in both:
            publisher.publish(b"2", ack="durable", timeout=5.0)
            stats = publisher.stats()
            assert (stats.messages, stats.bytes, publisher.position) == (2, 2, 2)
        assert sorted(payloads(one)) == [b"1", b"1", b"2", b"2"]


def proof(one: Platform, sent: dict[bytes, list[int]], acked: int, seq_of: dict[int, int]) -> None:
    """Every acked message is in the log once, and each key's in order; none is there twice."""
    rows = rows_of(one.topic)
    numbers = Count(int(payload) for _, _, _, payload, _ in rows)
    assert not [n for n, times in numbers.items() if times > 1]
    assert not [n for n, seq in seq_of.items() if seq <= acked and n not in numbers]
    for key in sent:
        mine = sorted((queue, token, int(p)) for queue, token, k, p, _ in rows if k == key)
        assert len({queue for queue, *_ in mine}) <= 1
        assert [n for *_, n in mine] == sorted(n for *_, n in mine)


def tear(one: Platform, rng: random.Random) -> None:
    """Damage the end of the log as a write does that the crash cut short."""
    for log in one.topic.logs:
        path = log.directory / segment_name(log.segments[-1].base_token)
        with path.open("ab") as file:
            file.write(rng.randbytes(rng.randrange(300)))


@pytest.mark.parametrize("seed", range(8))
def test_crashes_at_random_points_lose_nothing_and_double_nothing(seed: int) -> None:
    crash_at_random(seed, crashes=3)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 150))
def test_two_hundred_crashes(seed: int) -> None:
    crash_at_random(seed, crashes=4)


def crash_at_random(seed: int, crashes: int) -> None:
    rng = random.Random(seed)
    policy = rng.choice(["none", "interval", "batch"])
    queues = rng.choice([1, 3])
    with platform(queues=queues, fsync=policy, segment_bytes=1 << 16, history_bytes=1 << 17) as one:
        publisher = one.publisher(producer="p" if rng.random() < 0.5 else None)
        sent: dict[bytes, list[int]] = {}
        seq_of: dict[int, int] = {}
        number, acked = 0, 0
        for _ in range(crashes):
            for _ in range(rng.randrange(5, 60)):
                for _ in range(rng.randrange(12)):
                    key = b"k%d" % rng.randrange(9)
                    filler = b"0" * rng.choice([0, 10, 200, 3000])
                    try:
                        publisher.publish(filler + b"%d" % number, key=key, timeout=0.0)
                    except Timeout:  # full: the disk refused for long
                        set_faults(one, F_ERRNO, 0)
                        publisher.publish(filler + b"%d" % number, key=key, timeout=5.0)
                    sent.setdefault(key, []).append(number)
                    seq_of[number] = publisher.position
                    number += 1
                if rng.random() < 0.5:
                    one.run(rng.randrange(1, 4))
                if rng.random() < 0.1:
                    set_faults(one, F_ERRNO, errno.ENOSPC, room=rng.randrange(500))
                elif rng.random() < 0.3:
                    set_faults(one, F_ERRNO, 0)
                acked = max(acked, publisher.durable_position)
            one.crash()
            tear(one, rng)
            one.restart()
            assert publisher.durable_position >= acked
            proof(one, sent, acked, seq_of)
        one.run(200)
        assert publisher.durable_position == publisher.position == number
        proof(one, sent, number, seq_of)
        assert len(rows_of(one.topic)) == number
