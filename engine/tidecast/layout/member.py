"""A member's shared-memory file: deliveries from the engine, acks from the client. Version 1.

Each direction is a byte ring with one writer. Positions are bytes since the beginning and only
grow; position p is at offset ``p & (bytes - 1)``. A frame never wraps: a PAD frame fills the end of
the ring. Readers ignore bytes behind the writer's position, so a writer that dies leaves no partial
frame.
"""

from __future__ import annotations

from tidecast.layout.fields import Field, Layout

MEMBER_MAGIC = 0x31424D454D434454  # "TDCMEMB1", little endian
MEMBER_VERSION = 1
MEMBER_HEADER_BYTES = 4096
DELIVERIES_BYTES_MIN, DELIVERIES_BYTES_MAX = 64 * 1024, 1 << 30
ACKS_BYTES_MIN, ACKS_BYTES_MAX = 16 * 1024, 1 << 24

(
    MEM_MAGIC_AT,
    MEM_VERSION_AT,
    MEM_DELIVERIES_BYTES_AT,
    MEM_ACKS_BYTES_AT,
    MEM_MEMBER_AT,
    MEM_BELL_AT,
    MEM_CREATED_AT,
) = 0, 8, 16, 24, 32, 40, 48
MEM_DELIVERED_AT, MEM_STATE_AT, MEM_MOVED_AT = 64, 72, 80
MEM_TAKEN_AT, MEM_RELEASED_AT = 128, 136
MEM_ACKED_AT, MEM_ACKS_READ_AT, MEM_ARMED_AT = 192, 256, 320

MEM_ATTACHED, MEM_DETACHED = 1, 2

MEMBER_HEADER = Layout(
    "member header",
    384,
    (
        Field("magic", MEM_MAGIC_AT, 8, '"TDCMEMB1"'),
        Field("version", MEM_VERSION_AT, 4, f"always {MEMBER_VERSION}"),
        Field("deliveries_bytes", MEM_DELIVERIES_BYTES_AT, 8, "a power of two"),
        Field("acks_bytes", MEM_ACKS_BYTES_AT, 8, "a power of two"),
        Field("member", MEM_MEMBER_AT, 8, "number of the member at its puller"),
        Field("bell", MEM_BELL_AT, 8, "doorbell line of the client"),
        Field("created", MEM_CREATED_AT, 8, "ns since 1970"),
        Field("delivered", MEM_DELIVERED_AT, 8, "behind the last delivery (engine)"),
        Field("state", MEM_STATE_AT, 8, "attached 1, detached 2: nothing more will come (engine)"),
        Field("moved", MEM_MOVED_AT, 8, "how often frames in the ring became PAD: a seek (engine)"),
        Field("taken", MEM_TAKEN_AT, 8, "behind what the client has looked at (client)"),
        Field("released", MEM_RELEASED_AT, 8, "behind what may be overwritten (client)"),
        Field("acked", MEM_ACKED_AT, 8, "behind the last ack frame (client)"),
        Field("acks_read", MEM_ACKS_READ_AT, 8, "behind the last ack frame that was read (engine)"),
        Field("armed", MEM_ARMED_AT, 8, "1: the client sleeps and wants its bell rung"),
    ),
)
"""Behind the page: the ring of deliveries, then the ring of acks."""

# --- deliveries ---------------------------------------------------------------------------------
FRAME_HEADER_BYTES = 48
FRAME_RECORDS, FRAME_FRAGMENT, FRAME_PAD = 1, 2, 3
(
    FRAME_LENGTH_AT,
    FRAME_KIND_AT,
    FRAME_ATTEMPTS_AT,
    FRAME_CURSOR_AT,
    FRAME_TOKEN_AT,
    FRAME_ACKS_SEEN_AT,
    FRAME_COUNT_AT,
    FRAME_BYTES_AT,
    FRAME_OFFSET_AT,
) = 0, 4, 6, 8, 16, 24, 32, 36, 40

DELIVERY_FRAME = Layout(
    "delivery frame",
    FRAME_HEADER_BYTES,
    (
        Field("length", FRAME_LENGTH_AT, 4, "bytes of the frame, a multiple of 8"),
        Field("kind", FRAME_KIND_AT, 2, "records 1, fragment 2, pad 3 (only these two fields)"),
        Field("attempts", FRAME_ATTEMPTS_AT, 2, "how often these were delivered, from 1"),
        Field(
            "cursor", FRAME_CURSOR_AT, 8, "number of the cursor and its generation: topic and queue"
        ),
        Field("token", FRAME_TOKEN_AT, 8, "of the first record; the others follow"),
        Field("acks_seen", FRAME_ACKS_SEEN_AT, 8, "ack frames before this position were read"),
        Field("count", FRAME_COUNT_AT, 4, "records; fragment: bytes of the whole record"),
        Field("bytes", FRAME_BYTES_AT, 4, "bytes of records (of the fragment) behind the header"),
        Field("offset", FRAME_OFFSET_AT, 4, "fragment: where in the record these bytes belong"),
    ),
)
"""Behind it: records as in the log (`layout/segment.py`), end to end."""

# --- acks ---------------------------------------------------------------------------------------
ACK_FRAME_BYTES = 40
ACK_REASON_BYTES_MAX = 512
ACK, NAK, RETURN, EXTEND, TERM, ACK_PAD = 1, 2, 3, 4, 5, 6
(
    ACK_LENGTH_AT,
    ACK_KIND_AT,
    ACK_REASON_BYTES_AT,
    ACK_CURSOR_AT,
    ACK_FIRST_AT,
    ACK_END_AT,
    ACK_TIME_AT,
) = 0, 4, 6, 8, 16, 24, 32

ACK_FRAME = Layout(
    "ack frame",
    ACK_FRAME_BYTES,
    (
        Field("length", ACK_LENGTH_AT, 4, "bytes of the frame, a multiple of 8"),
        Field("kind", ACK_KIND_AT, 2, "ack 1, nak 2, return 3, extend 4, term 5, pad 6"),
        Field("reason_bytes", ACK_REASON_BYTES_AT, 2, "bytes of the reason behind (term, nak)"),
        Field("cursor", ACK_CURSOR_AT, 8, "as in the delivery"),
        Field("first", ACK_FIRST_AT, 8, "first token"),
        Field("end", ACK_END_AT, 8, "behind the last token"),
        Field("time", ACK_TIME_AT, 8, "nak: ns to wait; extend: ns from now"),
    ),
)

# --- wake-ups -----------------------------------------------------------------------------------
MEMBERS_MAX, QUEUES_MAX = 1024, 8192
WAKE_ARMED_AT, WAKE_BELL_AT = 0, 8
WAKE_MEMBERS_AT = 64
WAKE_QUEUES_AT = WAKE_MEMBERS_AT + MEMBERS_MAX // 8
WAKES_BYTES = WAKE_QUEUES_AT + QUEUES_MAX // 8

WAKES = Layout(
    "wake-ups of a puller",
    WAKES_BYTES,
    (
        Field("armed", WAKE_ARMED_AT, 8, "1: the puller sleeps"),
        Field("bell", WAKE_BELL_AT, 8, "its doorbell line"),
        Field("members", WAKE_MEMBERS_AT, MEMBERS_MAX // 8, "bit m: member m acked or made room"),
        Field("queues", WAKE_QUEUES_AT, QUEUES_MAX // 8, "bit q: queue q has new records"),
    ),
)


def member_bytes(deliveries_bytes: int, acks_bytes: int) -> int:
    """Size of a member's file."""
    return MEMBER_HEADER_BYTES + deliveries_bytes + acks_bytes
