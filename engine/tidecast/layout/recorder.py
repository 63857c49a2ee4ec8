"""The flight recorder's file: three rings of fixed records an agent, always on, read any time.

Header page, then for each writer (sender, receiver, conductor) an alert, a low-frequency and a
high-frequency ring of `RECORDS_MAX` records. A record is valid when its sequence, written last,
matches its place; a reader merges all rings by time.
"""

from __future__ import annotations

from enum import IntEnum, unique

from tidecast.layout.fields import Field, Layout

MAGIC = 0x31434552434454  # "TDCREC1"
HEADER_BYTES, RECORD_BYTES, RECORDS_MAX = 4096, 64, 1024
ALERT, LOW, HIGH = 0, 1, 2
SECTION_NAMES = ("alert", "low", "high")
SECTIONS, WRITERS = 3, 3
WRITER_SENDER, WRITER_RECEIVER, WRITER_CONDUCTOR = 0, 1, 2
WRITER_NAMES = ("sender", "receiver", "conductor")
AGENT_NAMES = ("conductor", "sender", "receiver", "archiver", "puller", "subscriptions", "leases")
"""Argument `agent` of `ENGINE_FAULT`; any other agent has the number behind these."""
RING_BYTES = 64 + RECORDS_MAX * RECORD_BYTES
FILE_BYTES = HEADER_BYTES + WRITERS * SECTIONS * RING_BYTES
PID_AT, REALTIME_OFFSET_AT = 8, 16

SEQ_AT, TIME_AT, CODE_AT, ENTITY_AT, A_AT, B_AT, C_AT, D_AT = 0, 8, 16, 24, 32, 40, 48, 56

RECORD = Layout(
    "recorder record",
    RECORD_BYTES,
    (
        Field("seq", SEQ_AT, 8, "1, 2, 3 ... within its ring; written last"),
        Field("time_ns", TIME_AT, 8, "monotonic clock; header has the offset to wall clock"),
        Field("code", CODE_AT, 8, "what happened"),
        Field("entity", ENTITY_AT, 8, "session id, or transport index"),
        Field("a", A_AT, 8, "first argument"),
        Field("b", B_AT, 8, "second argument"),
        Field("c", C_AT, 8, "third argument"),
        Field("d", D_AT, 8, "fourth argument"),
    ),
)


def ring_at(writer: int, section: int) -> int:
    """Offset of a ring: 64 bytes with the count of records written, then the records."""
    return HEADER_BYTES + (writer * SECTIONS + section) * RING_BYTES


@unique
class Code(IntEnum):
    """Recorded events: `MEANING` has their names, sections, and the meaning of a, b, c, d."""

    STARTED = 1
    STOPPED = 2
    PUBLICATION_ADDED = 3
    PUBLICATION_REMOVED = 4
    IMAGE_ADDED = 5
    IMAGE_REMOVED = 6
    RECEIVER_JOINED = 7
    RECEIVER_TIMEOUT = 8
    NAK_SENT = 9
    NAK_RECEIVED = 10
    RESENT = 11
    LOST_ANSWERED = 12
    GAP = 13
    PEER_TIMEOUT = 14
    EVICTED = 15
    STALE_INCARNATION = 16
    SETUP_SEEN = 17
    PROBE_SENT = 18
    SEND_ERROR = 19
    GSO_OFF = 20
    RECEIVER_LEFT = 21
    SESSION_ENDED = 22
    FAULTS_CHANGED = 23
    NODE_CONFLICT = 24
    TOPIC_CONFLICT = 25
    RATE_CHANGED = 26
    DISK_REFUSED = 27
    DISK_BACK = 28
    TAIL_TORN = 29
    PRODUCER_FENCED = 30
    RING_DRAINED = 31
    SEGMENTS_DELETED = 32
    PRODUCERS_EXPIRED = 33
    QUEUES_GROWN = 34
    QUEUES_TAKEN = 35
    QUEUES_RELEASED = 36
    OWNER_FENCED = 37
    RING_REFUSED = 38
    PRODUCER_HOLE = 39
    RING_DROPPED = 40
    ENGINE_FAULT = 41
    PUBLICATION_CUT = 42
    SUBSCRIPTION_DAMAGED = 43
    FILE_DAMAGED = 44
    FOREIGN_ADDRESS = 45
    SETUP_REFUSED = 46
    WIRE_FORGERY = 47
    WIRE_KEY = 48
    RING_STRANDED = 49
    PEERS_CHANGED = 50
    PEER_UNHEARD = 51
    PATH_NARROW = 52
    SENDS_REFUSED = 53


MEANING: dict[Code, tuple[int, str, tuple[str, ...]]] = {
    Code.STARTED: (LOW, "agent started", ("pid",)),
    Code.STOPPED: (LOW, "agent stopped", ()),
    Code.PUBLICATION_ADDED: (LOW, "publication added", ("topic", "slots")),
    Code.PUBLICATION_REMOVED: (LOW, "publication removed", ("sent",)),
    Code.IMAGE_ADDED: (LOW, "image added", ("topic", "join_seq", "slots", "source")),
    Code.IMAGE_REMOVED: (LOW, "image removed", ("contiguous", "reason")),
    Code.RECEIVER_JOINED: (LOW, "receiver joined", ("receiver", "node", "consumed")),
    Code.RECEIVER_TIMEOUT: (ALERT, "receiver dropped", ("receiver", "node", "consumed", "why")),
    Code.NAK_SENT: (HIGH, "NAK sent", ("first", "ranges", "packets")),
    Code.NAK_RECEIVED: (HIGH, "NAK received", ("receiver", "ranges", "packets")),
    Code.RESENT: (HIGH, "resent", ("first", "packets", "bytes")),
    Code.LOST_ANSWERED: (ALERT, "asked for what history lost", ("first", "end", "oldest")),
    Code.GAP: (ALERT, "packets lost for good", ("first", "end", "packets")),
    Code.PEER_TIMEOUT: (ALERT, "peer silent", ("source", "contiguous")),
    Code.EVICTED: (ALERT, "local subscriber evicted", ("subscription", "position", "highest")),
    Code.STALE_INCARNATION: (ALERT, "stale incarnation refused", ("source", "incarnation")),
    Code.SETUP_SEEN: (LOW, "setup seen", ("source", "topic", "next")),
    Code.PROBE_SENT: (HIGH, "tail probe", ("seq", "interval_ns")),
    Code.SEND_ERROR: (ALERT, "send failed", ("errno", "packets")),
    Code.GSO_OFF: (ALERT, "segmentation offload refused, fell back", ("errno",)),
    Code.RECEIVER_LEFT: (LOW, "receiver left", ("receiver", "node")),
    Code.SESSION_ENDED: (LOW, "session ended by its publisher", ("end_seq",)),
    Code.FAULTS_CHANGED: (ALERT, "fault injection changed", ("drop_ppm", "delay_ns", "seed")),
    Code.NODE_CONFLICT: (ALERT, "two nodes use one id", ("node", "incarnation")),
    Code.TOPIC_CONFLICT: (ALERT, "topic id used for something else", ("topic", "source")),
    Code.RATE_CHANGED: (LOW, "rate limit changed", ("packets_per_s", "bytes_per_s")),
    Code.DISK_REFUSED: (ALERT, "disk refuses a durable topic", ("queue", "errno")),
    Code.DISK_BACK: (ALERT, "disk takes a durable topic again", ()),
    Code.TAIL_TORN: (ALERT, "torn tail of a queue set aside", ("queue", "position", "bytes")),
    Code.PRODUCER_FENCED: (ALERT, "producer's older session fenced", ("producer", "epoch")),
    Code.RING_DRAINED: (LOW, "ring of a dead engine drained", ("messages",)),
    Code.SEGMENTS_DELETED: (LOW, "retention deleted segments", ("queue", "segments", "earliest")),
    Code.PRODUCERS_EXPIRED: (LOW, "producers forgotten", ("producers",)),
    Code.QUEUES_GROWN: (LOW, "durable topic has more queues", ("before", "after")),
    Code.QUEUES_TAKEN: (LOW, "queues taken with a lease", ("queues", "epoch")),
    Code.QUEUES_RELEASED: (LOW, "queues flushed and handed over", ("epoch",)),
    Code.OWNER_FENCED: (ALERT, "queues lost to a newer owner", ("epoch", "newest")),
    Code.RING_REFUSED: (ALERT, "no memory for a ring", ("source", "bytes", "used", "allowed")),
    Code.PRODUCER_HOLE: (ALERT, "hole in a producer's sequences", ("producer", "first", "end")),
    Code.RING_DROPPED: (
        ALERT,
        "ring of an older session dropped",
        ("producer", "first", "packets"),
    ),
    Code.RING_STRANDED: (
        ALERT,
        "ring of a topic that is not here",
        ("producer", "messages", "bytes"),
    ),
    Code.ENGINE_FAULT: (ALERT, "engine fault", ("agent", "faults", "in_a_row")),
    Code.FOREIGN_ADDRESS: (ALERT, "packets from a foreign address refused", ("source", "type")),
    Code.SETUP_REFUSED: (ALERT, "SETUP of a living node refused", ("source", "incarnation")),
    Code.WIRE_FORGERY: (ALERT, "packet that is not authentic refused", ("source", "plain")),
    Code.PEERS_CHANGED: (LOW, "discovered peers changed", ("peers", "new", "moved", "left")),
    Code.PEER_UNHEARD: (ALERT, "discovered peer is not heard", ("transport", "silence_ms")),
    Code.PATH_NARROW: (ALERT, "packets become IP fragments", ("transport", "mtu", "bytes")),
    Code.SENDS_REFUSED: (ALERT, "kernel refuses sends", ("transport", "errno", "sends", "mtu")),
    Code.WIRE_KEY: (LOW, "packets are sealed under a new epoch", ()),
    Code.PUBLICATION_CUT: (ALERT, "ended with messages unsent", ("packets", "messages", "bytes")),
    Code.SUBSCRIPTION_DAMAGED: (ALERT, "file of a subscription damaged", ()),
    Code.FILE_DAMAGED: (ALERT, "file beside a log damaged", ("queue",)),
}
