"""The packet ring's shared-memory file: header page, control words, slots, a tail. Versions 1, 2.

A ring of version 2 has a tail, behind its slots: further consumer entries.
"""

from __future__ import annotations

from tidecast.layout.fields import Field, Layout

MAGIC = 0x31474E4952434454  # "TDCRING1", little endian
MAGIC_WITH_TAIL = 0x32474E4952434454  # "TDCRING2"
PAGE_BYTES = 4096
HEADER_BYTES = PAGE_BYTES
SLOTS_MIN, SLOTS_MAX = 16, 1 << 20
CONSUMERS_AT, CONSUMER_BYTES = 1024, 64
HEADER_CONSUMERS, TAIL_CONSUMERS = 40, 256
CONSUMERS_MAX = HEADER_CONSUMERS + TAIL_CONSUMERS
TAIL_BYTES = TAIL_CONSUMERS * CONSUMER_BYTES
AGENT_CONSUMERS = 2
"""The last entries of a header that has a tail are for agents: those know no other entries."""

KIND_PUBLICATION, KIND_IMAGE = 1, 2
RELIABLE, UNORDERED, UNRELIABLE = 0, 1, 2
RELIABILITY_NAMES = ("reliable", "unordered", "unreliable")
FLOW_RATE, FLOW_MIN, FLOW_MAX = 0, 1, 2
FLOW_NAMES = ("rate", "min", "max")

# --- constant after creation --------------------------------------------------------------------
MAGIC_AT, KIND_AT, SLOTS_AT, SLOT_BYTES_AT = 0, 8, 12, 16
SESSION_AT, TOPIC_AT, NODE_AT, CHANNEL_AT, FLOW_AT, RELIABILITY_AT = 20, 24, 26, 28, 29, 30
HAS_NETWORK_AT, INCARNATION_AT, CREATED_AT, PRODUCER_AT, FIRST_SEQ_AT = 31, 32, 40, 48, 56
# --- one writer a line --------------------------------------------------------------------------
HEAD_AT, FIRST_AT, EPOCH_AT, LINE_AT, AFTER_AT, MESSAGES_AT = 64, 72, 80, 88, 92, 96
NETWORK_LIMIT_AT, SENT_AT, NEAR_LIMIT_AT = 128, 136, 144
HIGHEST_AT, CONTIGUOUS_AT, BASE_AT = 192, 200, 208
ACK_ARMED_AT, ACK_BELL_AT = 224, 232
ARMED_AT, SENDER_BELL_AT, CONSUMERS_USED_AT = 256, 264, 272
CLOSED_AT, END_SEQ_AT = 320, 328
RATE_PACKETS_AT, RATE_BYTES_AT, LINGER_AT = 384, 392, 400
DURABLE_AT, APPENDED_AT, ACK_STATE_AT, ACK_VERSION_AT = 408, 416, 424, 432
ACK_RECORDS_AT, ACK_RECORD_BYTES = 440, 24
NODE_NAME_AT, TOPIC_NAME_AT = 512, 768
ACK_OK, ACK_FENCED, ACK_ENDED, ACK_OPENING, ACK_REFUSED = 0, -1, -2, -3, -4
"""States of ACK_STATE_AT below 1; above it is the errno of a disk that refuses to take more.

OPENING: the topic's owner has not answered yet. REFUSED: `first_seq` would leave out a sequence.
"""

RING_HEADER = Layout(
    "ring header",
    CONSUMERS_AT,
    (
        Field("magic", MAGIC_AT, 8, '"TDCRING1", or "TDCRING2": with a tail'),
        Field("kind", KIND_AT, 4, "publication 1, image 2"),
        Field("slots", SLOTS_AT, 4, "N, a power of two"),
        Field("slot_bytes", SLOT_BYTES_AT, 4, "bytes a slot = largest packet"),
        Field("session", SESSION_AT, 4, "session id"),
        Field("topic", TOPIC_AT, 2, "topic id"),
        Field("node", NODE_AT, 2, "node id of the publisher"),
        Field("channel", CHANNEL_AT, 1, "control 0, ordinary 1, large 2"),
        Field("flow", FLOW_AT, 1, "rate 0, min 1, max 2"),
        Field("reliability", RELIABILITY_AT, 1, "reliable 0, unordered 1, unreliable 2"),
        Field("has_network", HAS_NETWORK_AT, 1, "1: a sender drains this ring"),
        Field("incarnation", INCARNATION_AT, 8, "start of the publisher's node, ns since 1970"),
        Field("created", CREATED_AT, 8, "ns since 1970"),
        Field("producer", PRODUCER_AT, 8, "producer id of a durable topic's session, else 0"),
        Field("first_seq", FIRST_SEQ_AT, 8, "producer's sequence of the ring's first message"),
        Field("head", HEAD_AT, 8, "next packet the writer opens (publication)"),
        Field("first", FIRST_AT, 8, "first packet this ring ever held"),
        Field("epoch", EPOCH_AT, 8, "producer's epoch, set once"),
        Field("line", LINE_AT, 4, "publisher's first session if it continues one, else 0"),
        Field("after", AFTER_AT, 4, "newest epoch that it had"),
        Field("messages", MESSAGES_AT, 8, "messages in the packets before the newest one"),
        Field("network_limit", NETWORK_LIMIT_AT, 8, "packets the network allows to be opened"),
        Field("sent", SENT_AT, 8, "next packet to send"),
        Field("near_limit", NEAR_LIMIT_AT, 8, "1: near the rate limit, batch in spite of flush"),
        Field("highest", HIGHEST_AT, 8, "behind the newest packet seen (image)"),
        Field("contiguous", CONTIGUOUS_AT, 8, "first packet not yet received (image)"),
        Field("base", BASE_AT, 8, "first packet of the receive window (image)"),
        Field("ack_armed", ACK_ARMED_AT, 8, "1: the writer sleeps until `durable` moves"),
        Field("ack_bell", ACK_BELL_AT, 8, "doorbell line of the writer"),
        Field(
            "armed",
            ARMED_AT,
            8,
            "bit i: consumer i < 40 sleeps; 61: some consumer of the tail; 62: the sender",
        ),
        Field("sender_bell", SENDER_BELL_AT, 8, "doorbell line of the sender"),
        Field("consumers_used", CONSUMERS_USED_AT, 8, "behind the last consumer entry ever used"),
        Field("closed", CLOSED_AT, 8, "1: no more packets will be written"),
        Field("end_seq", END_SEQ_AT, 8, "first packet that will never come, once closed"),
        Field("rate_packets", RATE_PACKETS_AT, 8, "packets/s, 0 = no limit; may change any time"),
        Field("rate_bytes", RATE_BYTES_AT, 8, "bytes/s, 0 = no limit; may change any time"),
        Field("linger_ns", LINGER_AT, 8, "age at which the sender seals an open packet"),
        Field("durable", DURABLE_AT, 8, "messages of this ring that are durable"),
        Field("appended", APPENDED_AT, 8, "messages of this ring that are in the log"),
        Field(
            "ack_state", ACK_STATE_AT, 8, "errno or 0; fenced -1, ended -2, opening -3, refused -4"
        ),
        Field("ack_version", ACK_VERSION_AT, 8, "its last bit says which record below holds"),
        Field("ack_records", ACK_RECORDS_AT, 48, "2 x {packet, offset in it, messages before}"),
        Field("node_name", NODE_NAME_AT, 256, "length byte + UTF-8"),
        Field("topic_name", TOPIC_NAME_AT, 256, "length byte + UTF-8"),
    ),
)

# --- consumer entries ---------------------------------------------------------------------------
CONSUMER_STATE_AT, CONSUMER_POSITION_AT, CONSUMER_CLIENT_AT = 0, 8, 16
CONSUMER_DOORBELL_AT, CONSUMER_SUBSCRIPTION_AT, CONSUMER_TETHERED_AT = 24, 32, 40
CONSUMER_OFFSET_AT, CONSUMER_ARMED_AT = 48, 56
CONSUMER_FREE, CONSUMER_ACTIVE, CONSUMER_EVICTED = 0, 1, 2
CONSUMER_CUT_OFF = 4
"""More than a ring of packets was lost: the consumer starts again behind them."""

CONSUMER_ENTRY = Layout(
    "consumer entry",
    CONSUMER_BYTES,
    (
        Field("state", CONSUMER_STATE_AT, 8, "free 0, active 1, evicted 2, joining 3, cut off 4"),
        Field("position", CONSUMER_POSITION_AT, 8, "lowest packet this consumer still needs"),
        Field("client", CONSUMER_CLIENT_AT, 8, "client id at the node"),
        Field("doorbell", CONSUMER_DOORBELL_AT, 8, "line of the doorbell file to ring"),
        Field("subscription", CONSUMER_SUBSCRIPTION_AT, 8, "subscription id at the node"),
        Field("tethered", CONSUMER_TETHERED_AT, 8, "1: holds the writer back; 0: may be lapped"),
        Field("offset", CONSUMER_OFFSET_AT, 8, "where it starts in its first packet; 0: at once"),
        Field("armed", CONSUMER_ARMED_AT, 8, "of the tail: 1: this consumer sleeps"),
    ),
)

# --- control words ------------------------------------------------------------------------------
#   63            32 31      24 23                0
#   +---------------+----------+------------------+
#   |  seq mod 2^31 |  state   |  length in bytes |
#   +---------------+----------+------------------+
EMPTY, OPEN, SEALED, GONE = 0, 1, 2, 3
"""Slot states. GONE: given up on (unreliable skip, or lost for good): length 0."""
SEQ_MASK, SEQ_SHIFT, STATE_SHIFT, CONTROL_LENGTH_MASK = (1 << 31) - 1, 32, 24, (1 << 24) - 1
TAIL_ARMED_BIT, SENDER_ARMED_BIT = 61, 62

# --- doorbells: one futex word a line, one line a client or agent ---------------------------------
DOORBELL_BYTES, DOORBELLS_MAX = 64, 1024
DOORBELL_ARCHIVER, DOORBELL_PULLER = 32, 34
DOORBELL_FIRST_CLIENT = 64
"""Lower lines belong to agents: transport i has sender 2 i and receiver 2 i + 1."""


def ring_bytes(slots: int, slot_bytes: int, *, tail: bool) -> int:
    """Size of a ring's file in bytes."""
    size = slots_at(slots) + -(-slots * slot_bytes // PAGE_BYTES) * PAGE_BYTES
    return size + TAIL_BYTES * tail


def slots_at(slots: int) -> int:
    """Offset of slot 0."""
    return HEADER_BYTES + -(-slots * 8 // PAGE_BYTES) * PAGE_BYTES


def slots_for(history_bytes: int, slot_bytes: int) -> int:
    """The power of two of slots that best fits ``history_bytes`` (rounded down, at least 16)."""
    slots = SLOTS_MIN
    while slots * 2 * slot_bytes <= history_bytes and slots < SLOTS_MAX:
        slots *= 2
    return slots
