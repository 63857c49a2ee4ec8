"""Sealed transports among whole nodes: what passes, what an intruder achieves, how keys change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support import packets
from tests.support.sealed_network import (
    FAR_NS,
    FIRST,
    Recorder,
    epoch,
    give,
    is_control,
    keys_of,
    number_of,
    sealed_node,
)
from tests.support.simulation import Reader, Stream, transfer

from tidecast.config.topology import TopicConfig
from tidecast.errors import ConfigError
from tidecast.events import WireForgery, WireKeyActive, WireKeyMissing
from tidecast.layout import packet as wire
from tidecast.layout import sealed as lay
from tidecast.node.live.peers import AHEAD_NS_MAX
from tidecast.node.sealing.wire_keys import WireKeys
from tidecast.protocol.sealing.keys import PacketKey, Purpose
from tidecast.testing import Network, SimulatedNode

SOON_NS = 1 + 10**9
"""Epoch 2 of these tests begins at 1; a second later the one before it ends, as planned."""
STRANGER = 999
"""A host that no node runs on."""
SLOTS = 64
SETTINGS: dict[str, Any] = {"history_bytes": SLOTS * 1400, "receive_bytes": SLOTS * 1400}
SIZE = 1300
REFUSED = ("tag_failed", "replayed", "unknown_key", "plain_refused", "invalid_field")
IMAGE_STATE = (
    "highest",
    "contiguous",
    "gaps",
    "lost",
    "named",
    "end_seq",
    "closed",
    "incarnation",
    "address_a",
    "address_b",
    "silent",
    "group",
)
PUBLICATION_STATE = ("sent", "limit", "lowest", "receivers", "resends", "ended", "owner", "owner_a")


def refused(node: SimulatedNode) -> int:
    """Packets that a node refused, whatever the reason."""
    return sum(node.count(each) for each in REFUSED)


def state_of(node: SimulatedNode) -> list[Any]:
    """The state of a node that packets can change."""
    [runtime] = node.engine.runtimes.values()
    images, pubs = runtime.rx_state.images, runtime.tx_state.pubs
    return [
        [
            [int(images[i][field]) for field in IMAGE_STATE]
            for i in np.flatnonzero(images["active"])
        ],
        [
            [int(pubs[p][field]) for field in PUBLICATION_STATE]
            for p in np.flatnonzero(pubs["active"])
        ],
        [{k: r[k] for k in ("receiver", "consumed", "excluded")} for r in node.engine.receivers()],
        sorted(node.engine.peers.by_id),
    ]


class Rig:
    """A publisher, a subscriber, and somebody who records and injects."""

    def __init__(self, net: Network, **settings: Any) -> None:
        self.net, self.recorded = net, Recorder(net)
        self.a, self.b = (sealed_node(net, name, **SETTINGS, **settings) for name in "ab")
        self.reader = Reader(self.b)
        net.run(1000)
        self.stream = Stream(self.a, count=20, size=SIZE)
        assert transfer(net, [self.stream], [self.reader])
        net.run(300_000)

    @property
    def fields(self) -> dict[str, Any]:
        topic = int(self.b.engine.topic_by_name["t"].wire_id)
        return {"session": self.stream.publisher.session, "source": self.a.id, "topic": topic}

    def inject(self, packet: bytes, source: int) -> None:
        """To the node that takes packets of this kind."""
        control = is_control(packet[wire.TYPE_AT])
        target = self.a if control else self.b
        self.net.switch.inject(target.id, packet, control=control, source=source)
        self.net.run(100)

    def unharmed(self, more: int = 200) -> None:
        """All is delivered, once and in order."""
        self.stream.count += more
        assert transfer(self.net, [self.stream], [self.reader])
        assert self.reader.found == self.stream.messages
        assert not self.reader.gaps


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Network(seed=1, delay_us=20) as net:
        yield Rig(net)


def test_everything_is_sealed_and_opened(rig: Rig) -> None:
    rig.unharmed()
    assert rig.recorded.versions == {lay.SEALED_VERSION}
    kinds = {packet.type for packet in rig.recorded.packets}
    assert {wire.DATA, wire.HEARTBEAT, wire.SETUP, wire.STATUS} <= kinds
    assert all(b"a:1" not in packet.data[lay.BODY_AT :] for packet in rig.recorded.packets)
    assert rig.a.count("sealed") >= 220
    assert rig.b.count("opened") >= 220
    assert rig.a.count("opened") > 0
    assert rig.b.count("sealed") > 0
    for node in (rig.a, rig.b):  # its first packet makes a sender known
        assert refused(node) == node.count("unknown_key") <= 2


@pytest.mark.parametrize("cipher", ["aes-128-gcm", "aes-256-gcm"])
def test_loss_is_repaired_by_packets_with_numbers_of_their_own(cipher: str) -> None:
    with Network(seed=3, delay_us=20) as net:
        recorded = Recorder(net)
        a, b, c = (
            sealed_node(net, name, transport={"cipher": cipher}, **SETTINGS) for name in "abc"
        )
        readers = [Reader(b), Reader(c)]
        net.run(1000)
        stream = Stream(a, count=10, size=SIZE)
        assert transfer(net, [stream], readers)
        net.switch.drop, net.switch.duplicate, net.switch.reorder = 0.2, 0.05, 0.1
        stream.count = 500
        assert transfer(net, [stream], readers)
        assert [reader.found for reader in readers] == [stream.messages] * 2
        assert any(packet.is_resent for packet in recorded.packets)
        assert recorded.of(wire.NAK, a.id)
        for node in (a, b):
            sent = {p.data for p in recorded.packets if p.source == node.id}
            assert len({number_of(raw) for raw in sent}) == len(sent) > 10
        assert b.count("replayed") > 0, "doubled packets"


def test_durable_topics_are_acked_by_sealed_packets() -> None:
    with Network(seed=6, delay_us=20) as net:
        recorded = Recorder(net)
        topic = TopicConfig(name="orders", mode="durable", owner="a", fsync="batch")
        a, b = (sealed_node(net, name, topics=[topic]) for name in "ab")
        publisher = b.connect().publisher("orders")
        for i in range(10):
            publisher.publish(b"%d" % i)
        assert net.run(5_000_000, until=lambda: publisher.durable_position >= 10)
        assert recorded.of(wire.ACK, b.id)
        assert recorded.versions == {lay.SEALED_VERSION}
        assert a.count("plain_refused") == b.count("plain_refused") == 0


# --- an intruder ----------------------------------------------------------------------------------

FORGED = {
    # wire.md A1 and multihost.md F1 to F13: what one forged packet did without keys.
    "F1 a setup of a future incarnation": lambda f: packets.setup(
        "a", "t", incarnation=1 << 62, **f
    ),
    "F1 a setup of another topic": lambda f: packets.setup(
        "a", "other", incarnation=1 << 62, **f | {"session": 77, "topic": 4711}
    ),
    "F2 a status that holds back": lambda f: packets.status(
        receiver_id=4711, consumed=0, contiguous=0, window=1, **f
    ),
    "F3 an end where it is": lambda f: packets.heartbeat(seq=20, flags=wire.FLAG_END, **f),
    "F4 an end ahead": lambda f: packets.heartbeat(seq=3020, flags=wire.FLAG_END, **f),
    "F5 lost a turn of control words ahead": lambda f: packets.lost(seq=20 + (1 << 31), **f),
    "F6 lost ahead": lambda f: packets.lost(seq=50, **f),
    "F7 a far heartbeat": lambda f: packets.heartbeat(seq=1 << 59, **f),
    "F8 data ahead": lambda f: packets.data(packets.message(b"forged"), seq=20, **f),
    "F8 rubbish ahead": lambda f: packets.data(b"\xff\xff\xff\x03", seq=25, **f),
    "F9 an ack of more than is durable": lambda f: packets.ack(seq=1, count=1 << 20, **f),
    "F9 an ack of the last owner": lambda f: packets.ack(owner=wire.EPOCH_MAX, **f),
    "F9 a fence": lambda f: packets.ack(epoch=2, state=-1, **f),
    "F10 a setup of a new session": lambda f: packets.setup("a", "t", **f | {"session": 78}),
    "F11 a setup of a new node": lambda f: packets.setup(
        "x", "t", **f | {"session": 79, "source": 1234}
    ),
    "F12 a leave": lambda f: packets.status(flags=wire.FLAG_LEAVE, **f),
    "F13 a false echo": lambda f: packets.status(time_ns=1, **f),
    "F13 a NAK of everything": lambda f: packets.nak([(0, 20)], **f),
}


def as_control(rig: Rig, fields: dict[str, Any]) -> dict[str, Any]:
    return fields | {"source": rig.b.id}


@pytest.mark.parametrize("host", ["true", "stranger"])
@pytest.mark.parametrize("form", ["plain", "sealed by a stranger", "sealed header, no tag"])
@pytest.mark.parametrize("what", FORGED)
def test_a_forged_packet_changes_nothing(rig: Rig, what: str, form: str, host: str) -> None:
    fields = rig.fields
    packet = FORGED[what](fields)
    if is_control(packet[wire.TYPE_AT]):
        packet = FORGED[what](as_control(rig, fields))
    control = is_control(packet[wire.TYPE_AT])
    node, other = (rig.a, rig.b) if control else (rig.b, rig.a)
    if form != "plain":
        packet = seal_as_stranger(rig, packet, known=form == "sealed header, no tag")
    before, count = state_of(node), refused(node)
    rig.inject(packet, other.id if host == "true" else STRANGER)
    assert state_of(node) == before
    assert refused(node) == count + 1
    client = rig.stream.client if control else rig.reader.client
    found = []
    while (event := client.take_event()) is not None:
        found.append(event)
    assert any(isinstance(event, WireForgery | WireKeyMissing) for event in found)
    rig.unharmed()


def seal_as_stranger(rig: Rig, packet: bytes, *, known: bool) -> bytes:
    """With a header as a genuine packet has it, and a body and a tag that no key made."""
    boot = 4242
    if known:  # of the true node's start, under a number that is new
        kind = wire.STATUS if is_control(packet[wire.TYPE_AT]) else wire.DATA
        target = rig.a if kind == wire.STATUS else rig.b
        genuine = rig.recorded.of(kind, target.id)[-1].data
        boot = int.from_bytes(genuine[lay.BOOT_AT : lay.BOOT_AT + 8], "little")
    head = bytearray(packet[: wire.PACKET_HEADER_BYTES])
    head[wire.VERSION_AT] = lay.SEALED_VERSION
    seal = bytearray(lay.SEAL_HEADER_BYTES)
    at = wire.PACKET_HEADER_BYTES
    seal[lay.EPOCH_AT - at], seal[lay.SUITE_AT - at] = 1, 1
    seal[lay.SEAL_FLAGS_AT - at] = lay.FLAG_PAIR if is_control(packet[wire.TYPE_AT]) else 0
    seal[lay.BOOT_AT - at : lay.BOOT_AT - at + 8] = boot.to_bytes(8, "little")
    seal[lay.NUMBER_AT - at : lay.NUMBER_AT - at + 8] = (1_000_000).to_bytes(8, "little")
    return bytes(head + seal) + packet[at:] + bytes(lay.TAG_BYTES)


def test_replays_of_all_packets_change_nothing(rig: Rig) -> None:
    recorded = [p for p in rig.recorded.packets if p.target in (rig.a.id, rig.b.id)]
    assert {wire.DATA, wire.SETUP, wire.STATUS} <= {p.type for p in recorded}
    before = [state_of(node) for node in (rig.a, rig.b)]
    opened = [node.count("opened") for node in (rig.a, rig.b)]
    counts = rig.a.count("replayed"), rig.b.count("replayed")
    for packet in recorded:
        rig.net.switch.inject(
            packet.target, packet.data, control=is_control(packet.type), source=packet.source
        )
    rig.net.run(100)
    assert [state_of(node) for node in (rig.a, rig.b)] == before
    came = rig.a.count("replayed") - counts[0] + rig.b.count("replayed") - counts[1]
    # What arrived while its sender's key was derived was never opened: it opens once.
    first = sum(node.count("unknown_key") for node in (rig.a, rig.b)) - 2
    assert came == len(recorded) - first
    more = sum(node.count("opened") for node in (rig.a, rig.b)) - sum(opened)
    assert more == first <= 2
    rig.unharmed()


def test_a_control_packet_for_another_node_is_refused(rig: Rig) -> None:
    """A STATUS that b sealed for a is nothing that c takes."""
    with_c = sealed_node(rig.net, "c", **SETTINGS)
    status = rig.recorded.of(wire.STATUS, rig.a.id)[-1]
    rig.net.switch.inject(with_c.id, status.data, control=True, source=rig.b.id)
    rig.net.run(100)
    assert refused(with_c) > 0
    assert with_c.count("opened") == 0 or with_c.count("status_received") == 0


def test_a_flood_of_unknown_senders_costs_a_bounded_number_of_derivations(rig: Rig) -> None:
    [runtime] = rig.b.engine.runtimes.values()
    assert runtime.sealed is not None
    derived: list[Purpose] = []
    side = runtime.sealed.receiver.opens
    derive = side._derive

    def counted(purpose: Purpose) -> PacketKey | None:
        derived.append(purpose)
        return derive(purpose)

    side._derive = counted
    packet = packets.setup("a", "t", incarnation=5, **rig.fields)
    began_ns = rig.net.now_ns
    for i in range(2000):
        raw = bytearray(seal_as_stranger(rig, packet, known=False))
        raw[lay.BOOT_AT : lay.BOOT_AT + 8] = (10**6 + i).to_bytes(8, "little")
        rig.inject(bytes(raw), STRANGER)
    seconds = (rig.net.now_ns - began_ns) / 1e9
    assert rig.b.count("unknown_key") >= 2000
    assert 1 <= len(derived) <= 100 * seconds + 2
    assert side.sources() == (rig.a.id,)
    rig.unharmed()


def test_a_node_in_quarantine_is_refused_and_forgotten(rig: Rig) -> None:
    [runtime] = rig.b.engine.runtimes.values()
    sealed = runtime.sealed
    assert sealed is not None
    sealed.refuse(frozenset({rig.a.id}))
    before = rig.b.count("unknown_key")
    rig.stream.count += 5
    rig.stream.push()
    rig.net.run(100_000)
    assert rig.b.count("unknown_key") > before
    assert len(rig.reader.found) == 20
    sealed.refuse(frozenset())
    rig.net.run(2_000_000)
    rig.unharmed()


# --- plain and sealed -----------------------------------------------------------------------------


def test_plain_packets_are_refused_where_sealed_ones_are_required() -> None:
    with Network(seed=4, delay_us=20) as net:
        a = net.node("a", topics=["t"])
        b = sealed_node(net, "b")
        reader = Reader(b)
        stream = Stream(a, count=20, size=SIZE)
        stream.push()
        net.run(2_000_000)
        assert not reader.found
        assert b.count("plain_refused") > 20
        [told, *_] = reader.events(WireForgery)
        assert (told.transport, told.node_id, told.reason) == ("memory", a.id, "plain")
        assert not b.engine.peers.by_id
        assert a.count("invalid_version") == 0, "b has nothing to answer"


def test_a_transport_that_is_off_does_not_read_sealed_packets() -> None:
    with Network(seed=4, delay_us=20) as net:
        a, b = sealed_node(net, "a"), net.node("b", topics=["t"])
        reader, stream = Reader(b), Stream(a, count=20, size=SIZE)
        stream.push()
        net.run(2_000_000)
        assert not reader.found
        assert b.count("invalid_version") > 20


def test_a_running_platform_is_switched_over_without_a_stop() -> None:
    """off -> optional, node by node; keys with an activation ahead; then required."""
    with Network(seed=5, drop=0.05, delay_us=20) as net:
        recorded = Recorder(net)
        a, b = (sealed_node(net, name, secure="optional", keys=None, **SETTINGS) for name in "ab")
        c = net.node("c", topics=["t"], **SETTINGS)
        readers = [Reader(b), Reader(c)]
        net.run(1000)
        stream = Stream(a, count=300, size=SIZE)
        assert transfer(net, [stream], readers)
        assert recorded.versions == {wire.VERSION}
        later = keys_of(epoch(1, begins=False))
        for node in (a, b):
            give(net, node, later)
        net.kill(c)
        stream.count = 600
        assert transfer(net, [stream], readers[:1])
        assert recorded.versions == {wire.VERSION}, "the epoch is not active yet"
        give(net, a, FIRST)  # a's clock is ahead of b's
        stream.count = 900
        assert transfer(net, [stream], readers[:1])
        assert lay.SEALED_VERSION in recorded.versions
        give(net, b, FIRST)
        recorded.packets.clear()
        stream.count = 1200
        assert transfer(net, [stream], readers[:1])
        assert recorded.versions == {lay.SEALED_VERSION}
        assert readers[0].found == stream.messages
        assert not readers[0].gaps
        assert readers[0].events(WireKeyActive)
        d = sealed_node(net, "d", **SETTINGS)
        late = Reader(d)
        net.run(500_000)
        stream.count = 1300
        assert transfer(net, [stream], [*readers[:1], late], until=lambda: len(late.found) >= 100)
        assert d.count("plain_refused") == 0


# --- epochs ---------------------------------------------------------------------------------------


def test_a_rotation_under_loss_loses_nothing() -> None:
    with Network(seed=7, delay_us=20) as net:
        recorded = Recorder(net)
        nodes = [sealed_node(net, name, **SETTINGS) for name in "abc"]
        readers = [Reader(node) for node in nodes[1:]]
        net.run(1000)
        stream = Stream(nodes[0], count=0, size=SIZE)

        def send(more: int) -> None:
            stream.count += more
            assert transfer(net, [stream], readers)

        send(20)
        net.switch.drop, net.switch.reorder = 0.2, 0.1
        send(200)
        for node in nodes:  # known everywhere, used nowhere
            give(net, node, keys_of(epoch(1), epoch(2, begins=False)))
        send(200)
        for node in nodes:  # each at its own time
            give(net, node, keys_of(epoch(1, ends_ns=SOON_NS), epoch(2)))
            send(100)
        assert {node.engine.wire_keys.state()[0]["epoch"] for node in nodes} == {2}
        for node in nodes:  # the first epoch is over
            give(net, node, keys_of(epoch(2)))
        recorded.packets.clear()
        send(200)
        used = {
            int.from_bytes(p.data[lay.EPOCH_AT : lay.EPOCH_AT + 4], "little")
            for p in recorded.packets
        }
        assert used == {2}
        assert [reader.found for reader in readers] == [stream.messages] * 2
        assert not any(reader.gaps for reader in readers)


def test_what_an_epoch_sealed_is_refused_once_it_is_over(rig: Rig) -> None:
    old = rig.recorded.of(wire.HEARTBEAT, rig.b.id)[-1]
    for keys in (keys_of(epoch(1, ends_ns=SOON_NS), epoch(2)), keys_of(epoch(2))):
        for node in (rig.a, rig.b):
            give(rig.net, node, keys)
    before = rig.b.count("opened")
    rig.net.run(100)
    rig.inject(old.data, rig.a.id)
    assert rig.b.count("replayed") + rig.b.count("unknown_key") > 0
    assert rig.b.count("opened") <= before + 2
    rig.unharmed()


def test_without_a_key_packets_are_held_back_and_never_sent_plain(rig: Rig) -> None:
    give(rig.net, rig.a, keys_of(epoch(1, ends_ns=SOON_NS)))
    rig.recorded.packets.clear()
    rig.stream.count += 10
    rig.stream.push()
    rig.net.run(3_000_000)
    assert not [p for p in rig.recorded.packets if p.source == rig.a.id]
    assert rig.a.count("keyless") > 0
    [told, *_] = rig.stream.events(WireKeyMissing)
    assert "no epoch that is active" in told.reason
    give(rig.net, rig.a, FIRST)
    rig.unharmed()


def test_a_clock_that_is_set_back_ends_no_epoch_and_begins_no_older_one(rig: Rig) -> None:
    """It looks to the node as if the epoch in use were still to begin."""
    give(rig.net, rig.a, keys_of(epoch(1, begins=False)))
    rig.unharmed()
    both = keys_of(epoch(1, ends_ns=SOON_NS), epoch(2))
    for node in (rig.a, rig.b):
        give(rig.net, node, both)
    rig.net.run(1_200_000)
    for again in ((False, False), (True, False)):
        first, second = again
        old = epoch(1, begins=first, ends_ns=FAR_NS + 1)
        give(rig.net, rig.a, keys_of(old, epoch(2, begins=second)))
        assert rig.a.engine.wire_keys.state()[0]["epoch"] == 2
        rig.unharmed()
    assert rig.a.count("keyless") == 0


def test_a_key_file_that_is_wrong_changes_nothing(rig: Rig) -> None:
    path = rig.a.data_dir / "wire-keys.json"
    path.write_text("{")
    rig.net.run(1_500_000)
    assert rig.a.engine.wire_keys.state()[0]["epoch"] == 1
    assert [told for told in rig.stream.events(WireKeyMissing) if "this is no JSON" in told.reason]
    path.unlink()
    rig.net.run(1_500_000)
    assert rig.a.engine.wire_keys.state()[0]["epoch"] == 1
    rig.unharmed()


def test_generations_follow_each_other_while_messages_flow(rig: Rig) -> None:
    """A sender's and a receiver's packets, each 2^24 of theirs."""
    generation = 1 << lay.GENERATION_BITS
    for k in (1, 2, 3):
        for node in (rig.a, rig.b):
            [runtime] = node.engine.runtimes.values()
            assert runtime.sealed is not None
            for side in (runtime.sealed.sender, runtime.sealed.receiver):
                side.sealer.sealer[0]["next"] = k * generation - 5
        rig.unharmed(100)
        rig.net.run(1_200_000)  # half of the next one is not over: the tick prepares it
        numbers = {number_of(p.data) >> lay.GENERATION_BITS for p in rig.recorded.packets[-20:]}
        assert numbers == {k}
    assert rig.a.count("keyless") == rig.b.count("keyless") == 0
    assert rig.a.count("tag_failed") == rig.b.count("tag_failed") == 0


def test_a_node_that_restarts_is_heard_again(rig: Rig) -> None:
    rig.net.restart(rig.a)
    [again] = [node for node in rig.net.nodes if node.name == "a"]
    stream = Stream(again, count=50, size=SIZE, name="again")
    assert transfer(rig.net, [stream], [rig.reader], until=lambda: len(rig.reader.found) >= 70)
    assert rig.reader.found[20:] == stream.messages


@pytest.mark.parametrize("keys", [None, keys_of(epoch(1, ends_ns=SOON_NS))])
def test_a_node_that_requires_keys_refuses_to_start_without(keys: Any) -> None:
    problem = r"no epoch of this transport: `tidecast wire keys new memory` makes one"
    with Network(seed=8) as net, pytest.raises(ConfigError, match=problem):
        sealed_node(net, "a", keys=keys)


# --- clocks that are wrong ------------------------------------------------------------------------

HOUR_S = 3600.0
OFF_S = (-10 * 24 * HOUR_S, -2 * HOUR_S, 2 * HOUR_S, 10 * 24 * HOUR_S)
"""By so much a clock is wrong: by hours, and by more than `MARGIN_NS`."""
OFF_S_CASES = (
    OFF_S[0],
    *(pytest.param(off_s, marks=pytest.mark.same_kernels) for off_s in OFF_S[1:]),
)
"""Of a clock kernels know nothing: the checked build has one case."""


def rotation(net: Network, *, begins_s: float, lasts_s: float) -> WireKeys:
    """Two epochs: the second begins in ``begins_s``, and the first ends ``lasts_s`` later."""
    begins_ns = net.wall_ns() + round(begins_s * 1e9)
    ends_ns = begins_ns + round(lasts_s * 1e9)
    second = msgspec.structs.replace(epoch(2), activate_at_ns=begins_ns)
    return keys_of(epoch(1, ends_ns=ends_ns), second)


class Pair:
    """Two nodes that publish to each other; nothing may be lost or wait."""

    def __init__(self, net: Network, *nodes: SimulatedNode) -> None:
        self.net, self.nodes = net, nodes
        self.readers = [Reader(node) for node in nodes[::-1]]
        net.run(1000)
        self.streams = [Stream(node, count=0, size=SIZE) for node in nodes]

    def hear(self, more: int = 20) -> None:
        """Each hears the other, at once."""
        for stream in self.streams:
            stream.count += more
        assert transfer(self.net, self.streams, self.readers, limit_us=1_500_000)
        for reader in self.readers:
            for stream in self.streams:
                name = stream.name.encode() + b":"
                assert [each for each in reader.found if each.startswith(name)] == stream.messages
            assert not reader.gaps


@pytest.mark.parametrize("off_s", OFF_S)
def test_a_node_that_starts_with_a_wrong_clock_is_heard_and_hears(off_s: float) -> None:
    with Network(seed=4, delay_us=20) as net:
        first = msgspec.structs.replace(epoch(1), activate_at_ns=net.wall_ns())
        a = sealed_node(net, "a", keys=keys_of(first), **SETTINGS)
        wrong = sealed_node(net, "b", keys=keys_of(first), clock_ahead_s=off_s, **SETTINGS)
        Pair(net, a, wrong).hear()
        for node in (a, wrong):
            assert node.count("keyless") == 0
            assert node.engine.wire_keys.state()[0]["epoch"] == 1


def test_a_start_that_lies_far_in_the_future_is_taken_when_it_is_sealed() -> None:
    """Without seals it may be forged, and is refused."""
    for secure in ("off", "optional", "required"):
        with Network(seed=4, delay_us=20) as net:
            net.now_ns += 2 * AHEAD_NS_MAX
            behind_s = -net.wall_ns() // 10**9
            keys = keys_of(msgspec.structs.replace(epoch(1), activate_at_ns=0))
            a = sealed_node(net, "a", secure=secure, keys=keys, clock_ahead_s=behind_s, **SETTINGS)
            b = sealed_node(net, "b", secure=secure, keys=keys, **SETTINGS)
            assert b.engine.incarnation > a.wall_ns() + AHEAD_NS_MAX
            reader = Reader(a)
            net.run(1000)
            stream = Stream(b, count=5, size=SIZE)
            heard = transfer(net, [stream], [reader], limit_us=3_000_000)
            assert heard == (secure == "required")


@pytest.mark.parametrize("off_s", OFF_S_CASES)
@pytest.mark.parametrize(
    "wrong",
    [
        "first",
        pytest.param("second", marks=pytest.mark.same_kernels),
        pytest.param("stepped", marks=pytest.mark.same_kernels),
    ],
)
def test_a_rotation_with_a_wrong_clock_makes_no_node_deaf(off_s: float, wrong: str) -> None:
    """The file is copied to one node after the other; the wrong clock has it first, or last."""
    with Network(seed=5, delay_us=20) as net:
        ahead = off_s if wrong != "stepped" else 0.0
        nodes = [
            sealed_node(net, "a", clock_ahead_s=ahead, **SETTINGS),
            sealed_node(net, "b", **SETTINGS),
        ]
        pair = Pair(net, *nodes)
        pair.hear()
        keys = rotation(net, begins_s=20, lasts_s=20)
        order = nodes[::-1] if wrong == "second" else nodes
        give(net, order[0], keys)
        if wrong == "stepped":
            nodes[0].set_clock_ahead(off_s)
        for _ in range(3):  # the other one has not got the file yet
            net.run(4_000_000)
            pair.hear()
        give(net, order[1], keys)
        for _ in range(12):  # through the activation, and the end of the first epoch
            net.run(5_000_000)
            pair.hear()
        if wrong == "stepped":
            nodes[0].set_clock_ahead(0.0)
            pair.hear()
        for node in nodes:
            assert node.engine.wire_keys.state()[0]["epoch"] == 2
            assert node.count("keyless") == 0


@pytest.mark.parametrize("off_s", OFF_S_CASES)
def test_a_node_that_starts_during_a_rotation_follows_the_others(off_s: float) -> None:
    with Network(seed=6, delay_us=20) as net:
        keys = rotation(net, begins_s=20, lasts_s=20)
        a = sealed_node(net, "a", keys=keys, **SETTINGS)
        net.run(5_000_000)
        b = sealed_node(net, "b", keys=keys, clock_ahead_s=off_s, **SETTINGS)
        pair = Pair(net, a, b)
        for _ in range(12):
            pair.hear()
            net.run(5_000_000)
        assert a.engine.wire_keys.state()[0]["epoch"] == 2
        assert b.engine.wire_keys.state()[0]["epoch"] == 2


@pytest.mark.parametrize("off_s", OFF_S_CASES)
def test_the_services_time_begins_and_ends_epochs_whatever_the_clock(off_s: float) -> None:
    with Network(seed=7, delay_us=20) as net:
        nodes = [
            sealed_node(net, "a", clock_ahead_s=off_s, **SETTINGS),
            sealed_node(net, "b", **SETTINGS),
        ]
        for node in nodes:
            now_ns = net.clock()
            node.engine.wire_keys.service_clock.learn(now_ns, now_ns, net.wall_ns())
        pair = Pair(net, *nodes)
        for node in nodes:
            give(net, node, rotation(net, begins_s=10, lasts_s=20))
        seen = []
        for _ in range(9):
            pair.hear(5)
            [state] = nodes[0].engine.wire_keys.state()
            seen.append((state["epoch"], state["accepted"]))
            net.run(5_000_000)
        begun = [(1, [1, 2]), (2, [1, 2]), (2, [2])]
        assert [each for k, each in enumerate(seen) if each not in seen[:k]] == begun
        assert not any(node.count("keyless") for node in nodes)
