"""The golden files: bytes that the code makes, in hex with the layout's field names.

A change here is a change of the wire or of shared memory: it needs a new version number.
`python -m tests.golden.golden` rewrites the files.
"""

from __future__ import annotations

import struct
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.gateway_frames import frames
from tests.support.simulation import Stream

from tidecast.agents.puller.state import MEMBER
from tidecast.buffers.member_ring import Frame, MemberFile, publish, put_frame, reserve
from tidecast.buffers.member_ring import put_ack as put_member_ack
from tidecast.buffers.recorder import create_recorder, record_from_python
from tidecast.buffers.ring_file import add_consumer, create_ring
from tidecast.client.core import metadata
from tidecast.embedded import connect_to
from tidecast.layout import counters as counters_lay
from tidecast.layout import member, segment
from tidecast.layout import packet as wire
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.layout.fields import Layout
from tidecast.log.building import BatchBuilder
from tidecast.log.files import index_name, segment_name
from tidecast.log.queue_log import QueueLog
from tidecast.native.jit import kernel
from tidecast.protocol.packets import (
    Ack,
    Route,
    Status,
    put_ack,
    put_nak,
    put_name,
    put_packet_header,
    put_status,
)
from tidecast.testing import Network
from tidecast.testing.switch import Packet

FOLDER = Path(__file__).parent / "files"
WHEN = 1_700_000_000_000_000_000


def drawn(layout: Layout, raw: bytes) -> str:
    """Hex, a line a field; what lies behind or between in lines of 16 bytes."""
    lines, end = [], 0
    for field in layout.fields:
        if raw[end : field.at].strip(b"\0"):
            lines.append(f"{end:>5} | {raw[end : field.at].hex(' ', 2)} | (unused)")
        end = field.at + field.width
        part = raw[field.at : end].rstrip(b"\0") if field.width > 32 else raw[field.at : end]
        lines.append(f"{field.at:>5} | {part.hex(' ', 2):<39} | {field.name}")
    rest = range(max(end, layout.size), len(raw), 16)
    lines += [f"{at:>5} | {raw[at : at + 16].hex(' ', 2):<39} |" for at in rest]
    return "\n".join(lines) + "\n"


@kernel
def built(out, ranges, name):  # type: ignore[no-untyped-def]
    control = Route(0, 0xA1B2C3D4, 0x1234, 0x0102)
    ordinary = Route(1, 0xA1B2C3D4, 0x1234, 0x0102)
    large = Route(2, 0xA1B2C3D4, 0x1234, 0x0102)
    put_packet_header(out, 2, 10, ordinary, 32, 1 << 40, 1234567890123)
    put_packet_header(out[100:], 6, 0, large, 32, 77, 1234567890123)
    n = put_nak(out[200:], ordinary, 1 << 61, ranges, 2, 1234567890123)
    m = put_status(out[300:], 16, control, Status(1 << 61, 5, 9, 2048, 3, 1234567890123, 250))
    k = put_ack(out[400:], ordinary, Ack(1 << 62, 3, 41, 1 << 33, 700, 9001, -1, 5))
    put_status(out[500:], 0, control, Status(1 << 61, 5, 9, 2048, 3, 1234567890123, 0))
    return n, m, k, put_name(out[500:], name)


def control_packets() -> dict[str, str]:
    out, name = np.zeros(700, dtype=np.uint8), np.frombuffer(bytearray(b"beta"), dtype=np.uint8)
    n, m, k, named = built(out, np.array([[5, 3], [900, 1]], dtype=np.int64), name)
    raw = out.tobytes()
    return {
        "packet_heartbeat": drawn(wire.PACKET_HEADER, raw[:32]),
        "packet_lost": drawn(wire.LOST_BODY, raw[100:132]),
        "packet_nak": drawn(wire.NAK_BODY, raw[200 : 200 + n]),
        "packet_status": drawn(wire.STATUS_BODY, raw[300 : 300 + m]),
        "packet_status_named": drawn(wire.STATUS_BODY, raw[500 : 500 + named]),
        "packet_ack": drawn(wire.ACK_BODY, raw[400 : 400 + k]),
    }


def sent_packets() -> dict[str, str]:
    """DATA and SETUP as a whole node sends them."""
    seen: list[Packet] = []
    with Network(seed=1) as net:
        a = net.node("alpha", topics=["md.eu"], node={"id": 258})
        net.node("beta")
        net.intercept(seen.append)
        publisher = Stream(a, "md.eu").publisher
        publish = publisher.publish
        publish(b"plain", flush=True)
        publish(b"key", key="k1", flush=True)
        publish(b"headers", headers={"a": 1}, flush=True)
        publish(b"time", timestamp=WHEN, flush=True)
        publish(b"to", subscriber=7, flush=True)
        publish(b"all", key="k1", headers={"a": 1}, timestamp=WHEN, subscriber=7, flush=True)
        publish(bytes(range(256)) * 10, key="k1", flush=True)
        net.settle()
    seen = [replace(p, data=p.data[: wire.TIME_AT] + bytes(8) + p.data[32:]) for p in seen]
    first: dict[int, Packet] = {}
    for packet in seen:
        first.setdefault(packet.type, packet)
    data = [p for p in seen if p.type == wire.DATA]
    names = ("plain", "key", "headers", "timestamp", "to", "all", "begin", "end")
    found = {
        f"packet_data_{name}": drawn(wire.PACKET_HEADER, p.data)
        for name, p in zip(names, data, strict=True)
    }
    setup = first[wire.SETUP].data
    found["packet_setup"] = drawn(wire.SETUP_BODY, setup)
    group = struct.pack("<H", 99) + setup[wire.SETUP_FLOW_AT : wire.SETUP_ROUND_TRIP_AT]
    group += struct.pack("<HBx", 12, 7) + setup[wire.SETUP_NAMES_AT :]
    of_many = setup[: wire.SETUP_RECEIVERS_AT] + group
    found["packet_setup_sampled"] = drawn(wire.SETUP_BODY, of_many)
    return found


def table_packets() -> dict[str, str]:
    """TABLE and COMPACT as a whole node sends them."""
    seen: list[Packet] = []
    with Network(seed=1) as net:
        settings: dict[str, Any] = {"compression": "tables", "level": 2}
        a = net.node("alpha", topics=["md.eu"], node={"id": 258}, **settings)
        b = net.node("beta", topics=["md.eu"], node={"id": 259}, **settings)
        b.connect().subscribe("md.eu").open()
        net.run(300_000.0)
        publish = Stream(a, "md.eu").publisher.publish
        net.run(300_000.0)
        net.intercept(seen.append)
        for i in range(5):
            publish(b"%d" % i, key="XETR.SAP", headers={"service": "quotes", "n": i}, flush=True)
            net.run(1000.0)
    raw = {p.type: p.data for p in seen}
    at = wire.TIME_AT  # and the table's number behind the header, which is drawn by the time of day
    whole = {k: r[:at] + bytes(8) + b"\7\0\0\0" + r[at + 12 :] for k, r in raw.items()}
    return {
        "packet_table": drawn(wire.TABLE_BODY, whole[wire.TABLE]),
        "packet_compact": drawn(wire.COMPACT_BODY, whole[wire.COMPACT]),
    }


def durable_setup(level: int = 1, *, own: bool = False) -> bytes:
    """The SETUP of a publication whose topic another node keeps, once its session is open.

    ``own``: the engine itself publishes.
    """
    seen: list[Packet] = []
    settings: dict[str, Any] = {"mode": "durable", "owner": "alpha"}
    with Network(seed=1) as net:
        net.node("alpha", topics=["orders"], node={"id": 258}, level=level, **settings)
        b = net.node("beta", topics=["orders"], node={"id": 259}, level=level, **settings)
        net.intercept(seen.append)
        client = connect_to(b.engine, True) if own else b.connect()
        publisher = client.publisher("orders", producer="billing", first_seq=41)
        publisher.publish(b"", flush=True)
        net.settle()
    raw = [p.data for p in seen if p.type == wire.SETUP][-1]
    raw = raw[: wire.TIME_AT] + bytes(8) + raw[32 : wire.SETUP_AGE_AT] + bytes(8) + raw[48:]
    return raw[: wire.SETUP_ROUND_TRIP_AT] + bytes(2) + raw[wire.SETUP_SAMPLING_AT :]


def durable_setups() -> dict[str, str]:
    """At level 1, and at level 2 with the area of further fields."""
    first, second, own = durable_setup(), durable_setup(2), durable_setup(2, own=True)
    block = len(first) - wire.PRODUCER_BYTES
    area = block + wire.PRODUCER_BYTES
    return {
        "packet_setup_durable": drawn(wire.SETUP_BODY, first),
        "producer_block": drawn(wire.PRODUCER_BODY, first[block:]),
        "packet_setup_area": drawn(wire.SETUP_BODY, second),
        "area_entry": drawn(wire.AREA_ENTRY, second[area:]),
        "packet_setup_own": drawn(wire.SETUP_BODY, own),
    }


@kernel
def framed(ring, members, bells):  # type: ignore[no-untyped-def]
    m = members[0]
    m.deliveries_bytes, m.acks_read = 1 << 16, 56
    at = reserve(ring, m, 48 + 32)
    whole = Frame(member.FRAME_RECORDS, 2, 0x100000002, 1 << 33, 1, 28, 0)
    put_frame(ring, m, at, 48 + 32, whole)
    at = reserve(ring, m, 48 + 8)
    part = Frame(member.FRAME_FRAGMENT, 1, 0x100000002, 7, 900_000, 8, 4096)
    put_frame(ring, m, at, 48 + 8, part)
    publish(ring, m, bells)


def member_files() -> dict[str, str]:
    """A member's file with two deliveries, and two ack frames of its client."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        file = MemberFile.create(Path(directory) / "m", 1 << 16, 1 << 14, member=3, bell=65)
        struct.pack_into("<q", file.array.data, member.MEM_CREATED_AT, WHEN)
        framed(file.array, np.zeros(1, dtype=MEMBER), np.zeros(128, dtype=np.uint8))
        k = file.client_state()
        put_member_ack(
            file.array, k, member.ACK, 0x100000002, 7, 12, 0, np.zeros(1, dtype=np.uint8), 0
        )
        reason = np.frombuffer(bytearray(b"poison"), dtype=np.uint8)
        put_member_ack(file.array, k, member.TERM, 0x100000002, 12, 13, 0, reason, reason.size)
        raw = file.array.tobytes()
    deliveries = raw[member.MEMBER_HEADER_BYTES :]
    acks = deliveries[1 << 16 :]
    n = member.ACK_FRAME_BYTES
    return {
        "member_header": drawn(member.MEMBER_HEADER, raw[: member.MEMBER_HEADER.size]),
        "member_records": drawn(member.DELIVERY_FRAME, deliveries[:80]),
        "member_fragment": drawn(member.DELIVERY_FRAME, deliveries[80:136]),
        "member_ack": drawn(member.ACK_FRAME, acks[:n]),
        "member_term": drawn(member.ACK_FRAME, acks[n : 2 * n + 8]),
    }


def optional_fields() -> dict[str, str]:
    meta, flags = metadata.encode(b"\x01key", {"s": "text", "n": -1, "b": b"\0\1"}, WHEN, 42)
    return {"message_optional_fields": f"flags {flags}\n" + meta.hex(" ", 4) + "\n"}


def shared_memory() -> dict[str, str]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        ring = create_ring(
            Path(directory) / "ring",
            kind=lay.KIND_IMAGE,
            slots=16,
            slot_bytes=1400,
            session=0xA1B2C3D4,
            topic=0x1234,
            node=0x0102,
            channel=1,
            flow=1,
            reliability=2,
            has_network=True,
            incarnation=WHEN,
            first=1 << 33,
            node_name="alpha",
            topic_name="md.eu",
        ).array
        add_consumer(
            ring, position=7, client=2, doorbell=65, subscription=9, tethered=True, offset=40
        )
        struct.pack_into("<q", ring.data, lay.CREATED_AT, 0)
        raw = ring.tobytes()
        with_tail = _ring_with_tail(Path(directory) / "tail")
        file = create_recorder(Path(directory) / "recorder").array
        record_from_python(file, rec.WRITER_RECEIVER, rec.ALERT, 123, rec.Code.GAP, 5, 1, 2, 3, 4)
        at = rec.ring_at(rec.WRITER_RECEIVER, rec.ALERT)
        record = file[at + 64 + rec.RECORD_BYTES : at + 64 + 2 * rec.RECORD_BYTES].tobytes()
    entry = raw[lay.CONSUMERS_AT : lay.CONSUMERS_AT + lay.CONSUMER_BYTES]
    words = raw[lay.HEADER_BYTES : lay.HEADER_BYTES + 16 * 8]
    return {
        "ring_header": drawn(lay.RING_HEADER, raw[: lay.RING_HEADER.size].rstrip(b"\0")),
        "ring_consumer": drawn(lay.CONSUMER_ENTRY, entry),
        "ring_with_tail": with_tail,
        "ring_control_words": drawn(Layout("control words", 0, ()), words),
        "recorder_record": drawn(rec.RECORD, record),
    }


def _ring_with_tail(path: Path) -> str:
    """The size of a ring of 16 slots, its magic number, and the 39th subscription's entry."""
    ring = create_ring(
        path,
        kind=lay.KIND_IMAGE,
        slots=16,
        slot_bytes=1400,
        session=1,
        topic=1,
        node=1,
        channel=1,
        flow=0,
        reliability=0,
        has_network=False,
        incarnation=WHEN,
        tail=True,
    ).array
    for subscription in range(1, 40):
        entry = add_consumer(
            ring, position=7, client=2, doorbell=65, subscription=subscription, tethered=True
        )
    at = ring.size - lay.TAIL_BYTES
    ring[at + lay.CONSUMER_ARMED_AT] = 1
    raw = ring.tobytes()
    head = f"magic {raw[:8].decode()}, {len(raw)} bytes, entry {entry} at {at}\n"
    return head + drawn(lay.CONSUMER_ENTRY, raw[at : at + lay.CONSUMER_BYTES])


def log_files() -> dict[str, str]:
    """A queue's segment with two batches, and its index once it is sealed."""
    builder = BatchBuilder()
    builder.begin(producer=0x0102030405060708, epoch=3, owner=9, base_seq=41, acked_seq=40)
    builder.add(b"plain", time_ns=WHEN)
    builder.add(
        b"all", key=b"k1", headers=b"\x81\xa1a\x01", time_ns=WHEN + 1, key_hash=0xA1B2C3D4, seq=44
    )
    token = builder.seal(0, WHEN + 2)
    builder.begin().add(b"", key=b"", time_ns=WHEN - 1)
    builder.seal(token, WHEN + 3)
    with tempfile.TemporaryDirectory() as directory:
        log = QueueLog.open(Path(directory), topic="orders", queue=5, now_ns=WHEN)
        log.append(builder.buffer, builder.used)
        log.roll(WHEN + 4)
        log.close()
        raw = (Path(directory) / segment_name(0)).read_bytes()
        index = (Path(directory) / index_name(0)).read_bytes()
    at, end = (
        segment.SEGMENT_HEADER_BYTES,
        segment.SEGMENT_HEADER_BYTES + segment.BATCH_HEADER_BYTES,
    )
    length = int.from_bytes(raw[at : at + 4], "little")
    first = segment.INDEX_ENTRY_BYTES + segment.SEGMENT_HEADER_BYTES
    return {
        "segment_header": drawn(segment.SEGMENT_HEADER, raw[:at]),
        "segment_batch": drawn(segment.BATCH_HEADER, raw[at : at + length]),
        "segment_record": drawn(segment.RECORD, raw[end : end + segment.RECORD_HEADER_BYTES + 5]),
        "segment_batch_bare": drawn(segment.BATCH_HEADER, raw[at + length :]),
        "index_header": drawn(segment.SEGMENT_HEADER, index[:at]),
        "index_entry": drawn(segment.INDEX_ENTRY, index[at:first]),
        "index_entry_last": drawn(segment.INDEX_ENTRY, index[first:]),
    }


def enumerations() -> dict[str, str]:
    """Numbers that are on the wire or in files: they may be added to, never changed."""
    counters = [f"{c.value:>3} {c.name}" for c in counters_lay.Counter]
    queue = [f"{c.value:>3} {c.name}" for c in counters_lay.QueueCounter]
    gateway = [f"{c.value:>3} {c.name}" for c in counters_lay.GatewayCounter]
    kafka = [f"{c.value:>3} {c.name}" for c in counters_lay.KafkaCounter]
    apis = [f"{c.value:>3} {c.name}" for c in counters_lay.KafkaApiCounter]
    adapters = [f"{c.value:>3} {c.name}" for c in counters_lay.AdapterCounter]
    transports = [f"{c.value:>3} {c.name}" for c in counters_lay.TransportCounter]
    keys = [f"{c.value:>3} {c.name}" for c in counters_lay.KeyCounter]
    codes = [f"{c.value:>3} {c.name}" for c in rec.Code]
    found = {
        "counters": counters,
        "queue_counters": queue,
        "gateway_counters": gateway,
        "kafka_counters": kafka,
        "kafka_api_counters": apis,
        "adapter_counters": adapters,
        "key_counters": keys,
        "transport_counters": transports,
        "recorder_codes": codes,
    }
    return {name: "\n".join(lines) + "\n" for name, lines in found.items()}


def gateway_frames() -> dict[str, str]:
    """One frame of each kind, as it crosses a websocket: a line a frame."""
    return {
        "gateway_frames": "\n".join(f"{name}\n  {raw.hex(' ', 4)}" for name, raw in frames()) + "\n"
    }


def golden() -> dict[str, str]:
    """Everything: file name -> content."""
    return (
        control_packets()
        | sent_packets()
        | optional_fields()
        | shared_memory()
        | log_files()
        | enumerations()
        | gateway_frames()
        | durable_setups()
        | table_packets()
        | member_files()
    )


def parse(text: str) -> bytes:
    """The bytes of a drawn packet."""
    raw = bytearray()
    for line in text.splitlines():
        at, body = line.split("|")[:2]
        part = bytes.fromhex(body)
        raw += bytes(max(0, int(at) - len(raw)))
        raw[int(at) : int(at) + len(part)] = part
    n = int.from_bytes(raw[wire.LENGTH_AT : wire.LENGTH_AT + 2], "little")
    return bytes(raw).ljust(n, b"\0")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in golden().items():
        (FOLDER / f"{name}.txt").write_text(text)


if __name__ == "__main__":
    main()

__all__ = ["FOLDER", "golden", "parse"]
