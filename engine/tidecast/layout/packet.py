"""Packets on the wire and messages inside them. Little endian. Version 1."""

from __future__ import annotations

from tidecast.layout.fields import Field, Layout

VERSION = 1
PACKET_HEADER_BYTES = 32
PACKET_BYTES_MIN, PACKET_BYTES_MAX = 576, 65_000

# --- packet header ------------------------------------------------------------------------------
VERSION_AT, TYPE_AT, FLAGS_AT, CHANNEL_AT = 0, 1, 2, 3
SESSION_AT, TOPIC_AT, LENGTH_AT = 4, 8, 10
RECEIVER_AT, SOURCE_AT, SEQ_AT, TIME_AT = 12, 14, 16, 24

DATA, HEARTBEAT, NAK, STATUS, SETUP, LOST, ACK, COMPACT, TABLE = 1, 2, 3, 4, 5, 6, 7, 8, 9
"""COMPACT: a DATA packet whose keys and headers refer to a table; TABLE defines entries of it."""
TYPE_MAX = TABLE
TYPE_NAMES = {
    DATA: "DATA",
    HEARTBEAT: "HEARTBEAT",
    NAK: "NAK",
    STATUS: "STATUS",
    SETUP: "SETUP",
    LOST: "LOST",
    ACK: "ACK",
    COMPACT: "COMPACT",
    TABLE: "TABLE",
}

FLAG_RETRANSMIT = 1
"""DATA: sent again because of a NAK."""
FLAG_END = 2
"""HEARTBEAT: the session is over; seq is the first packet that will never come."""
FLAG_WANT_SETUP = 4
"""STATUS: the receiver does not know this session; send SETUP."""
FLAG_PROBE = 8
"""HEARTBEAT: tail-loss probe."""
FLAG_LEAVE = 16
"""STATUS: the receiver leaves; forget it."""
FLAG_TABLES = 1
"""STATUS: the receiver reads COMPACT and TABLE."""
FLAG_WANT_TABLE = 2
"""STATUS: the receiver lacks the table of a packet; define all of it again."""

FLAG_REPORT = 32
"""HEARTBEAT: some packets are not confirmed as consumed; answer with STATUS (the last STATUS may be
lost)."""

FLAG_AREA = 1
"""SETUP: an area of further fields follows, before the platform's id. From level 2 on."""

FLAG_PRODUCER = 64
"""SETUP: the topic is durable and kept by another node; the producer's block follows the names."""

FLAG_LEFT = 128
"""SETUP: the publisher is gone, or its engine was gone: the messages of its ring are sent again."""

CHANNEL_ORDINARY, CHANNEL_LARGE = 1, 2
CHANNELS = 3
CHANNEL_NAMES = ("control", "ordinary", "large")
CHANNEL_PORT_OFFSET = (1, 0, 2)
"""UDP port of a channel = the transport's port + this."""

RECEIVER_ALL = 0
TOPIC_NONE = 0
"""HEARTBEAT: of no publication. It shows a unicast peer that its sender reaches it."""
EPOCH_MAX = (1 << 32) - 1
MESSAGE_SEQ_MAX = 1 << 62

PACKET_HEADER = Layout(
    "packet header",
    PACKET_HEADER_BYTES,
    (
        Field("version", VERSION_AT, 1, f"always {VERSION}"),
        Field(
            "type",
            TYPE_AT,
            1,
            "DATA 1, HEARTBEAT 2, NAK 3, STATUS 4, SETUP 5, LOST 6, ACK 7, COMPACT 8, TABLE 9",
        ),
        Field(
            "flags",
            FLAGS_AT,
            1,
            "RETRANSMIT 1, END 2, WANT_SETUP 4, PROBE 8, LEAVE 16, REPORT 32, PRODUCER 64, "
            "LEFT 128; of SETUP: AREA 1; of STATUS: TABLES 1, WANT_TABLE 2",
        ),
        Field("channel", CHANNEL_AT, 1, "control 0, ordinary 1, large 2"),
        Field("session", SESSION_AT, 4, "random id of the publication, never 0"),
        Field("topic", TOPIC_AT, 2, "topic id within the transport"),
        Field("length", LENGTH_AT, 2, "bytes of this packet that count, header included"),
        Field("receiver", RECEIVER_AT, 2, "node id, or 0 for all"),
        Field("source", SOURCE_AT, 2, "node id of the sender of this packet"),
        Field("seq", SEQ_AT, 8, "packet sequence (DATA), next sequence (HEARTBEAT, SETUP)"),
        Field("time", TIME_AT, 8, "sender's monotonic clock in ns; STATUS echoes it"),
    ),
)

# --- message header -----------------------------------------------------------------------------
MESSAGE_HEADER_BYTES = 4
MESSAGE_LENGTH_MAX = (1 << 24) - 1
BEGIN, END, KEY, HEADERS, TIMESTAMP, TO = 1, 2, 4, 8, 16, 32
WHOLE = BEGIN | END
FLAGS_KNOWN = 63
MESSAGE_BYTES_MAX = 1 << 28
"""Longest payload of a fragmented message, whatever the history holds."""
KEY_BYTES_MAX, HEADERS_BYTES_MAX = 0xFFFF, 0xFFFF

MESSAGE_HEADER = Layout(
    "message header",
    MESSAGE_HEADER_BYTES,
    (
        Field("length", 0, 3, "bytes that follow this header in this packet"),
        Field("flags", 3, 1, "BEGIN 1, END 2 (both: whole), KEY 4, HEADERS 8, TIMESTAMP 16, TO 32"),
    ),
)
"""Behind it, as flagged and in this order: total payload bytes (u64, only BEGIN without END),
time-stamp (i64, ns since 1970), to (u32, subscriber id), key (u16 length + bytes), headers (u16
length + MessagePack map), then payload. A fragmented message has its packets to itself."""

# --- bodies of control packets, offsets from the start of the packet ------------------------------
SETUP_INCARNATION_AT, SETUP_AGE_AT, SETUP_OLDEST_AT = 32, 40, 48
SETUP_SLOTS_AT, SETUP_PACKET_BYTES_AT, SETUP_RECEIVERS_AT = 56, 60, 62
SETUP_FLOW_AT, SETUP_RELIABILITY_AT, SETUP_NODE_LEN_AT, SETUP_TOPIC_LEN_AT = 64, 65, 66, 67
SETUP_ROUND_TRIP_AT, SETUP_SAMPLING_AT, SETUP_PLATFORM_LEN_AT = 68, 70, 71
SETUP_NAMES_AT = 72
ROUND_TRIP_UNIT_NS = 10_000
SAMPLING_MAX = 20
PLATFORM_BYTES = 8
NAME_BYTES_MAX = 200

SETUP_BODY = Layout(
    "SETUP",
    SETUP_NAMES_AT,
    (
        Field("header", 0, 32, "packet header; seq = next sequence"),
        Field("incarnation", SETUP_INCARNATION_AT, 8, "start of the node, ns since 1970"),
        Field("age_ns", SETUP_AGE_AT, 8, "how long the publication has existed"),
        Field("oldest", SETUP_OLDEST_AT, 8, "oldest packet still in history"),
        Field("slots", SETUP_SLOTS_AT, 4, "packets in the ring"),
        Field("packet_bytes", SETUP_PACKET_BYTES_AT, 2, "largest packet"),
        Field(
            "receivers",
            SETUP_RECEIVERS_AT,
            2,
            "receivers known to the sender; each stands for 2^sampling",
        ),
        Field("flow", SETUP_FLOW_AT, 1, "rate 0, min 1, max 2"),
        Field("reliability", SETUP_RELIABILITY_AT, 1, "reliable 0, unordered 1, unreliable 2"),
        Field("node_len", SETUP_NODE_LEN_AT, 1, "bytes of the node's name"),
        Field("topic_len", SETUP_TOPIC_LEN_AT, 1, "bytes of the topic's name"),
        Field("round_trip", SETUP_ROUND_TRIP_AT, 2, "sender's round trip in 10 us, 0: not known"),
        Field(
            "sampling",
            SETUP_SAMPLING_AT,
            1,
            "a receiver sends STATUS if so many low bits of its id are zero (at most 20)",
        ),
        Field(
            "platform_len", SETUP_PLATFORM_LEN_AT, 1, "8: the packet ends with the platform's id"
        ),
    ),
)
"""Names follow: node, then topic, UTF-8; with PRODUCER the producer's block behind them; with AREA
the area of further fields; at the end the id of the sender's platform, if it has an id.

Older nodes send zeros as `round_trip`, `sampling` and `platform_len`, and do not read them."""

(
    SETUP_PRODUCER_AT,
    SETUP_EPOCH_AT,
    SETUP_FIRST_SEQ_AT,
    SETUP_ACKED_PACKET_AT,
    SETUP_ACKED_OFFSET_AT,
    SETUP_ACKED_COUNT_AT,
    SETUP_LINE_AT,
    SETUP_AFTER_AT,
    SETUP_OLDER_AT,
    PRODUCER_BYTES,
) = 0, 8, 16, 24, 32, 40, 48, 52, 56, 64
PRODUCER_BYTES_MIN = SETUP_LINE_AT
"""The block of older nodes ends here."""

PRODUCER_BODY = Layout(
    "producer's block of SETUP",
    PRODUCER_BYTES,
    (
        Field("producer", SETUP_PRODUCER_AT, 8, "producer id"),
        Field("epoch", SETUP_EPOCH_AT, 8, "as the owner granted it, 0: open a session"),
        Field("first_seq", SETUP_FIRST_SEQ_AT, 8, "sequence of the ring's first message, 0: next"),
        Field("packet", SETUP_ACKED_PACKET_AT, 8, "acked so far: packet,"),
        Field("offset", SETUP_ACKED_OFFSET_AT, 8, "offset in it,"),
        Field("count", SETUP_ACKED_COUNT_AT, 8, "messages before"),
        Field("line", SETUP_LINE_AT, 4, "publisher's first session if it continues one, else 0"),
        Field("after", SETUP_AFTER_AT, 4, "newest epoch that it had"),
        Field("older_ns", SETUP_OLDER_AT, 8, "age of a dead engine's ring when it was taken over"),
    ),
)

# --- area of further fields of SETUP: entries {type, length, value}, end to end -------------------
AREA_TYPE_AT, AREA_LENGTH_AT, AREA_ENTRY_BYTES = 0, 1, 2
AREA_BYTES_MAX = 128
AREA_CRITICAL = 128
"""A receiver that does not know a type from here on refuses the session; it skips lower ones."""
AREA_PUBLISHED, AREA_PUBLISHED_BYTES = 1, 8
"""Messages that the publisher's ring has held in all (u64); of a durable topic kept elsewhere."""
AREA_ENGINE, AREA_ENGINE_BYTES = 2, 0
"""The engine itself publishes: the owner marks its records (`segment.REC_ENGINE`)."""

AREA_ENTRY = Layout(
    "entry of SETUP's area",
    AREA_ENTRY_BYTES,
    (
        Field("type", AREA_TYPE_AT, 1, "1: published (u64), 2: engine (empty); 0 is never used"),
        Field("length", AREA_LENGTH_AT, 1, "bytes of the value that follows"),
    ),
)

STATUS_RECEIVER_AT, STATUS_CONSUMED_AT, STATUS_CONTIGUOUS_AT = 32, 40, 48
STATUS_WINDOW_AT, STATUS_ECHO_DELAY_AT, STATUS_LOST_AT, STATUS_BYTES = 56, 60, 64, 72
STATUS_NAME_LEN_AT, STATUS_NAME_AT = 72, 73

STATUS_BODY = Layout(
    "STATUS",
    STATUS_BYTES,
    (
        Field("header", 0, 32, "packet header; time = echoed time of the sender's last packet"),
        Field("receiver", STATUS_RECEIVER_AT, 8, "random id of the image"),
        Field("consumed", STATUS_CONSUMED_AT, 8, "first packet not yet consumed"),
        Field("contiguous", STATUS_CONTIGUOUS_AT, 8, "first packet not yet received"),
        Field("window", STATUS_WINDOW_AT, 4, "packets that may be sent from `consumed` on"),
        Field("echo_delay_us", STATUS_ECHO_DELAY_AT, 4, "time the echoed packet lay here"),
        Field("lost", STATUS_LOST_AT, 8, "packets found missing so far"),
    ),
)
"""Behind it the name of the receiver's node: its length (u8), then UTF-8. Older nodes end here."""

NAK_RECEIVER_AT, NAK_COUNT_AT, NAK_RANGES_AT, NAK_RANGE_BYTES = 32, 40, 48, 12
NAK_BODY = Layout(
    "NAK",
    NAK_RANGES_AT,
    (
        Field("header", 0, 32, "packet header"),
        Field("receiver", NAK_RECEIVER_AT, 8, "random id of the image"),
        Field("count", NAK_COUNT_AT, 4, "ranges that follow: {first u64, packets u32}"),
    ),
)

(
    ACK_PRODUCER_AT,
    ACK_EPOCH_AT,
    ACK_FIRST_SEQ_AT,
    ACK_COUNT_AT,
    ACK_OFFSET_AT,
    ACK_STATE_AT,
    ACK_OWNER_AT,
    ACK_BYTES,
) = 32, 40, 48, 56, 64, 68, 72, 80

ACK_BODY = Layout(
    "ACK",
    ACK_BYTES,
    (
        Field("header", 0, 32, "packet header; seq = first packet not yet durable as a whole"),
        Field("producer", ACK_PRODUCER_AT, 8, "producer id"),
        Field("epoch", ACK_EPOCH_AT, 8, "the session's; when fenced, the newer one's"),
        Field("first_seq", ACK_FIRST_SEQ_AT, 8, "of the session; when refused, the one due"),
        Field("count", ACK_COUNT_AT, 8, "messages of the ring that are durable"),
        Field("offset", ACK_OFFSET_AT, 4, "durable up to this offset in packet seq"),
        Field("state", ACK_STATE_AT, 4, "0, errno of a full disk, -1 fenced, -4 refused"),
        Field("owner", ACK_OWNER_AT, 8, "epoch of the owner; a lower one than seen is ignored"),
    ),
)

# --- tables of repeated keys and headers ----------------------------------------------------------
COMPACT_TABLE_AT, COMPACT_ENTRIES_AT, COMPACT_LENGTH_AT, COMPACT_OPERATIONS_AT = 32, 36, 38, 40
COMPACT_BODY = Layout(
    "COMPACT",
    COMPACT_OPERATIONS_AT,
    (
        Field("header", 0, 32, "packet header, as of the DATA packet but for type and length"),
        Field("table", COMPACT_TABLE_AT, 4, "number of the table that the packet refers to"),
        Field("entries", COMPACT_ENTRIES_AT, 2, "it needs the entries below this number"),
        Field("length", COMPACT_LENGTH_AT, 2, "of the DATA packet, header included"),
    ),
)
"""Operations follow, which produce the bytes behind the header of the DATA packet."""

TABLE_NUMBER_AT, TABLE_FIRST_AT, TABLE_COUNT_AT, TABLE_DEFINITIONS_AT = 32, 36, 38, 40
TABLE_PACKET_BYTES_MAX = 1400
TABLE_BODY = Layout(
    "TABLE",
    TABLE_DEFINITIONS_AT,
    (
        Field("header", 0, 32, "packet header; seq = next sequence"),
        Field("table", TABLE_NUMBER_AT, 4, "its number, never 0; another one replaces it"),
        Field("first", TABLE_FIRST_AT, 2, "number of the first entry here"),
        Field("count", TABLE_COUNT_AT, 2, "entries that follow: {length u8, bytes}"),
    ),
)

LOST_BODY = Layout("LOST", 32, (Field("header", 0, 32, "seq = oldest packet still in history"),))
CONTROL_BYTES_MAX = 560
"""No control packet is longer, so that it fits the smallest packet size."""
NAK_RANGES_MAX = (CONTROL_BYTES_MAX - NAK_RANGES_AT) // NAK_RANGE_BYTES
