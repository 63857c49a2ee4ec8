"""The generated parts of docs/{PROTOCOL,DURABLE,GATEWAY}.md: diagrams, tables, states, from code.

    python -m tidecast.protocol_document docs/{PROTOCOL,DURABLE,GATEWAY}.md  # write them again
    python -m tidecast.protocol_document --check docs/PROTOCOL.md            # 1 when they differ

A part is between ``<!-- generated: NAME -->`` and ``<!-- end -->``; only the parts are replaced,
the rest of the page is written by hand. This is no part of a running engine, and is outside the
folders whose sources name the kernel cache: an edit here recompiles nothing.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from tidecast.api.frames import common
from tidecast.api.frames import socket as frames
from tidecast.config.topology import NodeConfig, TopicConfig
from tidecast.gateway import server
from tidecast.layout import counters, packet, recorder, ring, sealed, segment
from tidecast.layout.fields import Field, Layout
from tidecast.node.durable import owner_side, publisher_side
from tidecast.protocol.state_table import StateTable
from tidecast.queues.leases import keeper

MARKED = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

# --- records without a `Layout` of their own, from the constants that the code uses ---------------

DOORBELL = Layout(
    "doorbell line",
    ring.DOORBELL_BYTES,
    (Field("word", 0, 4, "futex word, counts up with every ring; wakes all who wait on it"),),
)
COUNTERS_HEADER = Layout(
    "counters header",
    64,
    (
        Field("magic", 0, 8, '"TDCCUNT1"'),
        Field("rows", 8, 8, f"rows in the file, {counters.ROWS_MAX}"),
    ),
)
RECORDER_HEADER = Layout(
    "recorder header",
    64,
    (
        Field("magic", 0, 8, '"TDCREC1"'),
        Field("pid", recorder.PID_AT, 8, "process that wrote it"),
        Field(
            "realtime_offset",
            recorder.REALTIME_OFFSET_AT,
            8,
            "ns since 1970 minus monotonic clock, when the file was made",
        ),
    ),
)
FRAME = Layout(
    "socket frame head",
    common.HEAD.size,
    (Field("length", 0, 4, "bytes of MessagePack that follow, at most FRAME_BYTES_MAX"),),
)

# --- flags and their meaning; a flag that is missing here fails -----------------------------------

PACKET_FLAGS = {
    "RETRANSMIT": ("DATA", "sent again because of a NAK"),
    "END": ("HEARTBEAT", "the session is over; `seq` is the first packet that will never come"),
    "WANT_SETUP": ("STATUS", "the receiver has no image, or none that will do: send SETUP"),
    "PROBE": ("HEARTBEAT", "tail-loss probe"),
    "LEAVE": ("STATUS", "the receiver leaves; forget it"),
    "REPORT": ("HEARTBEAT", "not all is confirmed as consumed; answer with STATUS"),
    "AREA": ("SETUP", "an area of further fields follows; see below"),
    "PRODUCER": ("SETUP", "a durable topic that another node keeps; the producer's block follows"),
    "LEFT": ("SETUP", "the publisher is gone: what its ring holds is repeated"),
    "TABLES": ("STATUS", "the receiver reads COMPACT and TABLE"),
    "WANT_TABLE": ("STATUS", "the receiver lacks the table of a packet: define all of it again"),
}
MESSAGE_FLAGS = {
    "BEGIN": "the message begins here",
    "END": "the message ends here; BEGIN and END together: it is whole",
    "KEY": "a key follows",
    "HEADERS": "headers follow",
    "TIMESTAMP": "a time-stamp follows",
    "TO": "the id of the only subscriber that shall have it follows",
}

# --- timers and limits: (module or settings, name, meaning) ---------------------------------------

TIMERS: tuple[tuple[str, str, str], ...] = (
    (
        "node.live.agent_tables",
        "JOIN_HOLD_NS",
        ("a new publication holds its first DATA back at most so long, for receivers to set up"),
    ),
    ("agents.live.sender", "JOIN_GRACE_NS", "and so long behind the first receiver, for others"),
    ("agents.live.sender", "SETUP_EAGER_NS", "SETUP repeats while DATA is held back"),
    ("agents.live.sender", "SETUP_INTERVAL_NS", "SETUP repeats after that"),
    ("agents.live.sender", "SETUP_THROTTLE_NS", "delay of the SETUP that answers WANT_SETUP"),
    ("agents.live.receiver", "WANT_INTERVAL_NS", "at most one WANT_SETUP a transport in this time"),
    ("agents.live.receiver", "WANT_AGAIN_NS", "WANT_SETUP repeats for a subscription"),
    ("topic", "linger_us", "age at which the sender seals an open packet (0: at once)"),
    (
        "agents.live.sending",
        "NEAR_LIMIT_LINGER_NS",
        "the least linger while a rate limit holds back",
    ),
    (
        "agents.live.sending",
        "PROBE_NS_UNKNOWN",
        ("tail-loss probe behind the last DATA, round trip not known"),
    ),
    ("agents.live.sending", "PROBE_NS_MIN", "round trip known: 1.5 x it, at least"),
    ("agents.live.sending", "PROBE_NS_MAX", "and at most; doubles from there to the heartbeat"),
    ("node", "heartbeat_ms", "heartbeat of a silent publication"),
    ("topic", "nak_delay_us", "grace for reordering before the first NAK of a gap"),
    (
        "topic",
        "nak_retry_us",
        "least time between two NAKs of a gap; else its round trip + 4 x deviation",
    ),
    ("agents.live.receiving", "NAK_RETRY_NS_UNKNOWN", "the same while the round trip is not known"),
    ("protocol.loss", "RETRY_NS_MAX", "NAKs of a gap back off by doubling up to this"),
    (
        "agents.live.sender",
        "RESEND_LINGER_NS_MIN",
        (
            "a packet is not resent twice within this, or within "
            "3/4 of the round trip if that is longer"
        ),
    ),
    (
        "agents.live.receiving",
        "STATUS_INTERVAL_NS_FIRST",
        ("STATUS of a new image; doubles up to the next"),
    ),
    ("agents.live.receiving", "STATUS_INTERVAL_NS", "STATUS at the latest"),
    (
        "agents.live.receiving",
        "UNREPORTED_NS",
        ("STATUS behind progress that is not reported yet; at once behind 1/8 of the ring"),
    ),
    ("agents.live.expanding", "ASK_AGAIN_NS", "a receiver asks for a table that it lacks"),
    ("agents.live.compacting", "TABLE_AGAIN_NS", "all of a table is defined again, if asked for"),
    ("protocol.tables.writing", "TABLE_NS_MIN", "a table lasts at least so long"),
    ("agents.live.sender", "BEACON_INTERVAL_NS", "a beacon goes to the discovered peers"),
    ("node.live.targets", "SILENT_S", "a discovered peer that is silent so long is reported"),
    ("agents.live.sender", "CHECK_INTERVAL_NS", "the sender looks for silent and stuck receivers"),
    ("topic", "receiver_timeout_s", "a receiver that is silent or stuck so long is dropped"),
    ("node", "image_timeout_s", "a publication that is silent so long has timed out"),
    (
        "topic",
        "close_linger_s",
        ("a closed publication answers NAKs so long while receivers have not left"),
    ),
    (
        "node.live.images",
        "GONE_PATIENCE_S",
        "rings that are over are kept so long for their readers",
    ),
    ("node.node", "TICK_S", "the conductor looks after stuck readers and drained rings"),
    ("protocol.rate_limit", "BURST_NS", "what a rate limit's bucket holds, or 64 packets if more"),
    (
        "node.sealing.transport_keys",
        "REFUSED_PAUSE_NS",
        "between two packets of strangers whose key is derived",
    ),
    (
        "protocol.sealing.receiver",
        "RECENT_NS",
        "a sender heard since then makes no room for another start",
    ),
    ("node.sealing.key_ring", "LOOK_S", "the key file is looked at"),
)
LIMITS: tuple[tuple[str, str, str], ...] = (
    ("layout.packet", "PACKET_BYTES_MIN", "smallest packet size"),
    ("layout.packet", "PACKET_BYTES_MAX", "largest packet size"),
    ("layout.packet", "CONTROL_BYTES_MAX", "longest control packet"),
    ("layout.packet", "NAK_RANGES_MAX", "ranges a NAK"),
    ("layout.sealed", "LANES_MAX", "lanes a transport"),
    ("layout.sealed", "SEAL_BYTES", "bytes that a sealed packet is longer"),
    ("protocol.sealing.window", "WINDOW_NUMBERS", "packet numbers of a replay window"),
    ("protocol.sealing.receiver", "SENDERS_A_NODE_MAX", "lanes of starts of a node that are known"),
    ("protocol.sealing.sender", "TARGETS_MAX", "publishers' nodes that a receiver seals for"),
    ("layout.packet", "NAME_BYTES_MAX", "bytes of a topic's name"),
    ("layout.packet", "MESSAGE_BYTES_MAX", "payload bytes a message, whatever the history holds"),
    ("layout.packet", "KEY_BYTES_MAX", "bytes of a key"),
    ("layout.packet", "HEADERS_BYTES_MAX", "bytes of the headers"),
    ("protocol.tables.entries", "ENTRIES_MAX", "entries of a table of keys and headers"),
    ("protocol.tables.entries", "TABLE_BYTES_MAX", "bytes of all entries of a table"),
    ("protocol.tables.entries", "ENTRY_BYTES_MAX", "bytes of an entry"),
    ("layout.ring", "SLOTS_MIN", "fewest packets a ring"),
    ("layout.ring", "SLOTS_MAX", "most packets a ring"),
    ("layout.ring", "CONSUMERS_MAX", "readers of a ring on one node"),
    ("layout.ring", "DOORBELLS_MAX", "doorbell lines a node"),
    ("protocol.loss", "GAPS_MAX", "gaps an image keeps track of"),
    ("protocol.flow_control", "RECEIVERS_MAX", "receivers a publication keeps track of"),
    ("protocol.session_table", "SESSIONS_MAX", "places in an agent's table of sessions"),
    ("agents.live.publications", "PUBLICATIONS_MAX", "publications a lane of a transport sends"),
    ("agents.live.publications", "RESENDS_MAX", "ranges to resend a publication"),
    ("agents.live.images", "IMAGES_MAX", "images a transport receives"),
)

# --- states: (from, to, why, where in the code) ---------------------------------------------------

Transition = tuple[str, str, str, str]


def made_by(table: StateTable[Any, Any, Any]) -> Iterator[Transition]:
    """The transitions of a table that the code runs by, with the actions as their places."""
    for (state, event), (after, action) in table.rows.items():
        where = f"{action.__module__.removeprefix('tidecast.')}.{action.__qualname__}"
        yield state.name, after.name, event.value, where


SLOT_STATES: tuple[Transition, ...] = (
    ("[*]", "EMPTY", "ring made", "buffers.ring_file.create_ring"),
    ("EMPTY", "OPEN", "writer opens", "buffers.writer.open_packet"),
    ("OPEN", "OPEN", "writer commits messages", "buffers.writer.commit"),
    ("OPEN", "SEALED", "writer seals: full, flushed, closed", "buffers.writer.seal"),
    ("OPEN", "SEALED", "sender seals: lingered", "agents.live.sending._seal_if_old"),
    ("OPEN", "SEALED", "node seals: writer died", "buffers.writer.close_abandoned"),
    ("SEALED", "OPEN", "next lap", "buffers.writer.open_packet"),
)
IMAGE_SLOT_STATES: tuple[Transition, ...] = (
    ("[*]", "EMPTY", "ring made", "buffers.ring_file.create_ring"),
    ("EMPTY", "SEALED", "packet placed", "agents.live.receiving.place_packet"),
    ("EMPTY", "GONE", "given up: lost for good", "agents.live.receiving._mark_gone"),
    ("SEALED", "EMPTY", "next lap, packet comes", "agents.live.receiving.place_packet"),
    ("SEALED", "GONE", "next lap, given up", "agents.live.receiving._mark_gone"),
    ("GONE", "EMPTY", "next lap, packet comes", "agents.live.receiving.place_packet"),
)
IMAGE_STATES: tuple[Transition, ...] = (
    (
        "[*]",
        "Unknown",
        "packet of a wanted topic: ask for SETUP",
        "agents.live.receiver._ask_for_setup",
    ),
    ("Unknown", "Pending", "SETUP came", "agents.live.receiver._setup_of_unknown"),
    (
        "Pending",
        "Ended",
        "incarnation is older than a known one",
        "node.live.peers.Peers.accept",
    ),
    ("Pending", "Ignored", "no subscription here", "node.live.sessions.Sessions._on_setup"),
    ("Ignored", "Unknown", "subscriptions changed", "node.live.receiver_tables.KnownSessions"),
    ("Pending", "Active", "image made, STATUS sent", "node.live.sessions.Sessions._make_image"),
    ("Active", "Closed", "END known and all is here", "agents.live.receiving.finish_if_complete"),
    (
        "Active",
        "TimedOut",
        "silent for image_timeout_s",
        "node.live.sessions.Sessions._peer_timeout",
    ),
    (
        "Active",
        "Restarted",
        "newer incarnation of its node",
        "node.live.sessions.Sessions._supersede_older",
    ),
    ("Active", "Ignored", "last reader left: LEAVE sent", "node.live.images.Images.check"),
    ("TimedOut", "Unknown", "heard again: resumes", "node.live.sessions.Sessions._peer_timeout"),
    ("Closed", "Ended", "readers have drained it", "node.live.images.Images.check"),
    ("Restarted", "Ignored", "readers have drained it", "node.live.images.Images.check"),
)
CONSUMER_STATES: tuple[Transition, ...] = (
    ("[*]", "ACTIVE", "node adds a reader", "buffers.ring_file.add_consumer"),
    ("ACTIVE", "EVICTED", "receiver: too far behind", "agents.live.receiving._evict"),
    ("ACTIVE", "EVICTED", "node: stuck for receiver_timeout_s", "node.live.images.evict_stuck"),
    ("ACTIVE", "CUT_OFF", "receiver: more than a ring was lost", "agents.live.receiving.on_lost"),
    ("EVICTED", "ACTIVE", "reader: a gap (lapped), starts again", "buffers.reader.skip_lost"),
    ("CUT_OFF", "ACTIVE", "reader: a gap (lost), starts again", "buffers.reader.skip_lost"),
    ("ACTIVE", "FREE", "subscription ends", "buffers.ring_file.remove_consumer"),
    ("EVICTED", "FREE", "subscription ends", "buffers.ring_file.remove_consumer"),
)
LEASE_STATES: tuple[Transition, ...] = (
    ("[*]", "FREE", "the topic is known", "queues.leases.keeper.LeaseKeeper.add"),
    *made_by(keeper.TRANSITIONS),
)
OWNER_STATES: tuple[Transition, ...] = (
    ("[*]", "UNKNOWN", "a publisher opens a session", "node.durable.owner_side.OwnerSide.on_setup"),
    *made_by(owner_side.TRANSITIONS),
    (
        "READ",
        "UNKNOWN",
        "a newer session of its producer begins",
        "node.durable.session_order.Grants.fence",
    ),
    (
        "READ",
        "UNKNOWN",
        "another node keeps the topic now",
        "node.durable.publisher_side.PublisherSide.take_back",
    ),
)
PUBLISHER_STATES: tuple[Transition, ...] = (
    (
        "[*]",
        "NEW",
        "the ring is made, its session is not begun",
        "node.durable.publisher_side.PublisherSide.bind_ring",
    ),
    *made_by(publisher_side.TRANSITIONS),
)
SESSION_STATES: tuple[Transition, ...] = (
    ("[*]", "SERVED", "a client connects without a session", "gateway.session.RemoteSession"),
    *made_by(server.TRANSITIONS),
)
MACHINES = {
    "lease-states": LEASE_STATES,
    "session-states": SESSION_STATES,
    "owner-states": OWNER_STATES,
    "publisher-states": PUBLISHER_STATES,
    "slot-states": SLOT_STATES,
    "image-slot-states": IMAGE_SLOT_STATES,
    "image-life": IMAGE_STATES,
    "consumer-states": CONSUMER_STATES,
}

# --- rendering ------------------------------------------------------------------------------------


def table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    """A Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in lines)


def record(layout: Layout) -> str:
    """A record's diagram and its fields."""
    return f"```text\n{layout.diagram()}\n```\n\n{layout.table()}"


def mermaid(transitions: tuple[Transition, ...]) -> str:
    """A state diagram, and where each transition is made."""
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    {a} --> {b}: {why.replace(':', ' -')}" for a, b, why, _ in transitions]
    rows = [(a, b, why, f"`{where}`") for a, b, why, where in transitions if a != "[*]"]
    return "\n".join([*lines, "```", "", table(("from", "to", "when", "code"), rows)])


def find(where: str) -> Any:
    """The object of a dotted name below `tidecast`. Raises AttributeError, ImportError."""
    return pkgutil.resolve_name(f"tidecast.{where}")


def _value(place: str, name: str) -> Any:
    if place in ("topic", "node"):
        settings = TopicConfig(name="x") if place == "topic" else NodeConfig()
        return getattr(settings, name)
    return find(f"{place}.{name}")


def shown_time(name: str, value: float) -> str:
    """A duration by the unit in its name: ``RETRY_NS_MAX``, 100000000 -> ``100 ms``."""
    unit = next(word for word in reversed(name.lower().split("_")) if word in _UNITS_NS)
    nanoseconds = value * _UNITS_NS[unit]
    for text, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:g} {text}"
    return f"{nanoseconds:g} ns"


_UNITS_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


def _setting(place: str, name: str) -> str:
    return f"`{name}` ({place})" if place in ("topic", "node") else f"`{place}.{name}`"


def timers() -> str:
    """Timers with the values that the code has."""
    return table(
        ("value", "what", "name"),
        [(shown_time(n, _value(p, n)), what, _setting(p, n)) for p, n, what in TIMERS],
    )


def limits() -> str:
    """Limits with the values that the code has."""
    return table(
        ("limit", "of", "name"),
        [(f"{_value(p, n):,}", what, f"`{p}.{n}`") for p, n, what in LIMITS],
    )


def packet_types() -> str:
    """Numbers and names of packet types."""
    return table(("type", "name"), sorted(packet.TYPE_NAMES.items()))


def packet_flags() -> str:
    """All FLAG_* of the packet layout. Raises KeyError for one that is not explained."""
    named = {n[5:]: v for n, v in vars(packet).items() if n.startswith("FLAG_")}
    rows = [(v, f"`{n}`", *PACKET_FLAGS[n]) for n, v in sorted(named.items(), key=lambda x: x[1])]
    return table(("value", "flag", "in", "meaning"), rows)


def message_flags() -> str:
    """The flags of messages."""
    rows = [(getattr(packet, n), f"`{n}`", what) for n, what in MESSAGE_FLAGS.items()]
    assert sum(value for value, _, _ in rows) == packet.FLAGS_KNOWN
    return table(("value", "flag", "meaning"), rows)


def channels() -> str:
    """Channels and their ports."""
    rows = [
        (i, packet.CHANNEL_NAMES[i], f"`port` + {packet.CHANNEL_PORT_OFFSET[i]}")
        for i in range(packet.CHANNELS)
    ]
    return table(("channel", "name", "UDP port"), rows)


def control_word() -> str:
    """The control word of a slot, and its states."""
    widths = (("seq", ring.SEQ_SHIFT, 31), ("state", ring.STATE_SHIFT, 8), ("length", 0, 24))
    assert ring.SEQ_MASK == (1 << 31) - 1
    assert ring.CONTROL_LENGTH_MASK == (1 << 24) - 1
    bits = [
        (f"{at}..{at + n - 1}", f"`{name}`", what)
        for (name, at, n), what in zip(
            widths,
            ("packet sequence modulo 2^31", "EMPTY, OPEN, SEALED, GONE", "bytes committed"),
            strict=True,
        )
    ]
    picture = (
        "```text\n"
        " 63 62                            32 31       24 23                     0\n"
        "+--+--------------------------------+-----------+------------------------+\n"
        "|0 |        seq modulo 2^31         |   state   |    length in bytes     |\n"
        "+--+--------------------------------+-----------+------------------------+\n"
        "```"
    )
    states = [(getattr(ring, name), f"`{name}`", what) for name, what in SLOT_STATE_NAMES.items()]
    return "\n\n".join(
        (
            picture,
            table(("bits", "field", "meaning"), bits),
            table(("value", "state", "meaning"), states),
        )
    )


SLOT_STATE_NAMES = {
    "EMPTY": "nothing to read: never used, or (image) being filled",
    "OPEN": "the writer appends; the first `length` bytes may be read",
    "SEALED": "complete; `length` bytes",
    "GONE": "given up: this packet will never come; `length` is 0",
}


def ring_map() -> str:
    """The parts of a ring's file."""
    assert ring.slots_at(16) == ring.HEADER_BYTES + ring.PAGE_BYTES
    rows = [
        (0, ring.CONSUMERS_AT, "ring header"),
        (
            ring.CONSUMERS_AT,
            ring.HEADER_CONSUMERS * ring.CONSUMER_BYTES,
            f"{ring.HEADER_CONSUMERS} consumer entries",
        ),
        (ring.HEADER_BYTES, "8 N, rounded up to a page", "control words, one a slot"),
        ("behind", "N x slot_bytes, rounded up to a page", "slots: packets with their headers"),
        (
            "behind",
            ring.TAIL_BYTES,
            f"`TDCRING2`: the tail, {ring.TAIL_CONSUMERS} more consumer entries",
        ),
    ]
    return table(("at", "bytes", "what"), rows)


def counters_map() -> str:
    """The parts of the counters file."""
    rows = [
        (0, counters.HEADER_BYTES, "header page"),
        (
            counters.INFO_AT,
            counters.VALUES_AT - counters.INFO_AT,
            f"{counters.ROWS_MAX} row descriptions of {counters.ROW_INFO_BYTES} bytes",
        ),
        (
            counters.VALUES_AT,
            counters.FILE_BYTES - counters.VALUES_AT,
            f"{counters.ROWS_MAX} rows of {counters.COLUMNS} i64",
        ),
    ]
    return table(("at", "bytes", "what"), rows)


def enum_docs(kind: Any) -> dict[str, str]:
    """The docstring below each member of an enumeration, by name."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    found, name = {}, ""
    for each in body.body:
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            name = each.targets[0].id
        elif name and isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
            found[name] = " ".join(str(each.value.value).split())
            name = ""
    return found


def counters_table(columns: type[IntEnum]) -> str:
    """Every counter of a kind of row."""
    docs = enum_docs(columns)
    rows = [(int(each), f"`{each.name}`", docs[each.name]) for each in columns]
    return table(("column", "counter", "meaning"), rows)


def recorder_map() -> str:
    """The parts of the recorder's file."""
    rows = [(0, recorder.HEADER_BYTES, "header page")]
    rows += [
        (recorder.ring_at(w, s), recorder.RING_BYTES, f"{writer}, {section}")
        for w, writer in enumerate(recorder.WRITER_NAMES)
        for s, section in enumerate(recorder.SECTION_NAMES)
    ]
    return table(("at", "bytes", "what"), rows)


def recorder_codes() -> str:
    """Every code, its ring, and the meaning of its arguments."""
    rows = []
    for code in recorder.Code:
        section, text, arguments = recorder.MEANING[code]
        names = ", ".join(f"`{name}`" for name in arguments)
        rows.append((int(code), f"`{code.name}`", recorder.SECTION_NAMES[section], text, names))
    return table(("code", "name", "ring", "meaning", "arguments"), rows)


def requests() -> str:
    """The requests of a client over the socket, and their answers."""
    asked: dict[Any, Any] = {**frames.RESULTS, frames.EventsTaken: "no reply"}
    rows = []
    for kind, result in sorted(asked.items(), key=lambda item: item[0].__name__):
        names = ", ".join(f"`{name}`" for name in kind.__struct_fields__) or "-"
        answer = getattr(result, "__name__", str(result)) if result is not None else "nil"
        if "[" in str(result):
            answer = re.sub(r"[a-z_]+\.(?:[a-z_]+\.)*", "", str(result))
        rows.append((f"`{kind.__name__}`", names, answer.replace("|", "or")))
    return table(("request", "fields", "result"), rows)


PARTS: dict[str, Callable[[], str]] = {
    "packet-header": lambda: record(packet.PACKET_HEADER),
    "sealed-header": lambda: record(sealed.SEALED_HEADER),
    "packet-types": packet_types,
    "packet-flags": packet_flags,
    "message-header": lambda: record(packet.MESSAGE_HEADER),
    "message-flags": message_flags,
    "setup": lambda: record(packet.SETUP_BODY),
    "area": lambda: record(packet.AREA_ENTRY),
    "compact": lambda: record(packet.COMPACT_BODY),
    "table": lambda: record(packet.TABLE_BODY),
    "status": lambda: record(packet.STATUS_BODY),
    "nak": lambda: record(packet.NAK_BODY),
    "lost": lambda: record(packet.LOST_BODY),
    "producer": lambda: record(packet.PRODUCER_BODY),
    "ack": lambda: record(packet.ACK_BODY),
    "channels": channels,
    "timers": timers,
    "limits": limits,
    "ring-map": ring_map,
    "ring-header": lambda: record(ring.RING_HEADER),
    "consumer-entry": lambda: record(ring.CONSUMER_ENTRY),
    "control-word": control_word,
    "doorbell": lambda: record(DOORBELL),
    "counters-map": counters_map,
    "counters-header": lambda: record(COUNTERS_HEADER),
    "counters-row": lambda: record(counters.ROW_INFO),
    "counters": lambda: counters_table(counters.Counter),
    "node-counters": lambda: counters_table(counters.NodeCounter),
    "transport-counters": lambda: counters_table(counters.TransportCounter),
    "queue-counters": lambda: counters_table(counters.QueueCounter),
    "gateway-counters": lambda: counters_table(counters.GatewayCounter),
    "key-counters": lambda: counters_table(counters.KeyCounter),
    "kafka-counters": lambda: counters_table(counters.KafkaCounter),
    "kafka-api-counters": lambda: counters_table(counters.KafkaApiCounter),
    "adapter-counters": lambda: counters_table(counters.AdapterCounter),
    "segment-header": lambda: record(segment.SEGMENT_HEADER),
    "batch-header": lambda: record(segment.BATCH_HEADER),
    "record": lambda: record(segment.RECORD),
    "index-entry": lambda: record(segment.INDEX_ENTRY),
    "producers": lambda: record(segment.PRODUCERS_HEADER) + "\n\n" + record(segment.PRODUCER),
    "recorder-map": recorder_map,
    "recorder-header": lambda: record(RECORDER_HEADER),
    "recorder-record": lambda: record(recorder.RECORD),
    "recorder-codes": recorder_codes,
    "frame": lambda: record(FRAME),
    "requests": requests,
    **{name: partial(mermaid, rows) for name, rows in MACHINES.items()},
}
"""Name of a part -> the function that generates it."""


def layouts(*modules: ModuleType) -> list[Layout]:
    """All records that modules describe."""
    return [value for each in modules for value in vars(each).values() if isinstance(value, Layout)]


def generated(text: str) -> str:
    """The page with all its generated parts regenerated. Raises KeyError for an unknown part."""
    return MARKED.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n\n{found[3]}", text)


def main(arguments: list[str]) -> int:
    """Write, or with ``--check`` compare. The exit code."""
    check = "--check" in arguments
    stale = 0
    for name in (each for each in arguments if each != "--check"):
        path = Path(name)
        text = path.read_text("utf-8")
        fresh = generated(text)
        stale += fresh != text
        if fresh != text and not check:
            path.write_text(fresh, "utf-8")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
