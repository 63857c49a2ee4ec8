"""The receiver's state of its images: each image is a record of fixed types, without objects."""

from __future__ import annotations

import numpy as np

from tidecast.agents.events import EVENT_FIELDS
from tidecast.layout.counters import COLUMNS
from tidecast.layout.packet import CONTROL_BYTES_MAX
from tidecast.native.handles import Kind
from tidecast.protocol.loss import GAP, GAPS_MAX
from tidecast.protocol.sealing.receiver import OPENER
from tidecast.transport.faults import FAULTS
from tidecast.transport.wire_io import RECEIVE_IO, SEND_IO

IMAGES_MAX = 4608
NEVER = 1 << 62

IMAGE = np.dtype(
    [
        ("active", np.int64),  # 0 free, 1 in use
        ("index", np.int64),  # its own number
        ("ring_address", np.int64),
        ("ring_bytes", np.int64),
        ("slots", np.int64),
        ("slot_bytes", np.int64),
        ("slots_at", np.int64),
        ("session", np.int64),
        ("topic", np.int64),
        ("channel", np.int64),
        ("source", np.int64),  # node id of the publisher
        ("incarnation", np.int64),
        ("flow", np.int64),
        ("reliability", np.int64),
        ("row", np.int64),  # counters row
        ("receiver", np.int64),  # our random id
        ("highest", np.int64),  # behind the newest packet seen
        ("contiguous", np.int64),  # first packet not yet received
        ("window_end", np.int64),  # first packet that does not fit the ring now
        ("gaps", np.int64),  # rows used in the gap table
        ("nak_ns", np.int64),  # when the next gap is due
        ("status_ns", np.int64),  # next STATUS at the latest
        ("status_interval_ns", np.int64),  # doubles from the first STATUS on
        ("reported", np.int64),  # consumed as last reported
        ("contiguous_reported", np.int64),  # contiguous as last reported
        ("buffer_slots", np.int64),  # packets that the socket's buffer holds for us
        ("repaired_ns", np.int64),  # when the newest repaired gap had been asked for
        ("rtt_ns", np.int64),  # NAK to repair, smoothed; 0 = not known
        ("rtt_var_ns", np.int64),  # its mean deviation
        ("patience", np.int64),  # doublings of the wait for a repair, since some were not needed
        ("patience_ns", np.int64),  # when it last changed
        ("heard_ns", np.int64),  # last packet of the session
        ("echo_ns", np.int64),  # time in its last packet
        ("echo_at_ns", np.int64),  # when that came
        ("lost", np.int64),  # packets found missing
        ("named", np.int64),  # behind the last packet that its publisher spoke of
        ("end_seq", np.int64),  # first packet that never comes; -1 = not known
        ("closed", np.int64),  # 1: all is here and said so
        ("address_a", np.int64),  # 16 bytes: where NAK and STATUS go
        ("address_b", np.int64),
        ("next", np.int64),  # another image of the same session, or -1
        ("nak_delay_ns", np.int64),
        ("nak_retry_ns", np.int64),
        ("group", np.int64),  # receivers of the session, as its SETUP says
        ("sampling", np.int64),  # which of them send STATUS
        ("round_trip_ns", np.int64),  # the sender's, 0 = not known
        ("published", np.int64),  # messages of the publisher's ring in all, -1 = not known
        ("timeout_ns", np.int64),
        ("silent", np.int64),  # 1: time-out was reported
        ("durable", np.int64),  # 1: the archiver reads it, and its publisher gets acks
        ("producer", np.int64),  # of a durable image
        ("epoch", np.int64),
        ("first_seq", np.int64),
        ("owner", np.int64),  # epoch of our lease
        ("acked", np.int64),  # version of the ack record as last sent
        ("ack_state", np.int64),  # state as last sent
        ("dirty", np.int64),  # 1: readers are to be woken
        ("begins", np.int64),  # where history begins, while nothing of it has come; else -1
        ("renewed_ns", np.int64),  # when its node's newer incarnation is looked at again
        ("table_address", np.int64),  # its table's block
        ("table_ns", np.int64),  # when to ask for the table; 0: it is not missing
        ("table_asked_ns", np.int64),  # when that was last done
        ("want_setup_ns", np.int64),  # when to ask for a SETUP for the conductor; 0: not wanted
    ]
)

SETUPS_KEPT_MAX = 64
NODES = 1 << 16
"""Ids of 16 bits, as packets have them."""
RECEIVER = Kind(
    "Receiver",
    [
        ("images", IMAGE, ()),
        ("gaps", GAP, (GAPS_MAX,)),  # by image
        ("index", np.int64, ()),  # images in use
        ("sessions", np.int64, (2,)),  # session -> image, or SESSION_*
        ("wanted", np.int64, ()),  # bitmap of topics that have a subscription here
        ("heard", np.int64, ()),  # by node id: when its last packet came; 0: never
        ("quarantine", np.int64, ()),  # bitmap of nodes whose packets are refused
        ("setups", np.uint8, (CONTROL_BYTES_MAX,)),  # SETUP packets for the conductor
        ("rx0", RECEIVE_IO, ()),
        ("rx1", RECEIVE_IO, ()),
        ("rx2", RECEIVE_IO, ()),
        ("tx", SEND_IO, ()),  # for NAK and STATUS
        ("opener", OPENER, ()),  # of packets that are sealed
        ("faults", FAULTS, ()),
        ("events", np.int64, (EVENT_FIELDS,)),
        ("attention", np.int64, ()),
        ("counters", np.int64, (COLUMNS,)),
        ("recorder", np.uint8, ()),
        ("bells", np.uint8, ()),
        ("packet", np.uint8, ()),  # the packet under construction
        ("expanded", np.uint8, ()),  # the DATA packet made from a COMPACT packet
        ("name", np.uint8, ()),  # of our node, UTF-8
        ("ranges", np.int64, (2,)),  # of a NAK under construction
        ("misc", np.int64, ()),  # M_*
        ("seed", np.int64, ()),
    ],
)
"""All that a receiver owns."""

SESSION_IGNORED, SESSION_PENDING, SESSION_ENDED = -1, -2, -3

M_COUNT, M_CURSOR, M_NODE, M_ROW, M_WANT_ALL, M_WANT_NS, M_SETUPS, M_LAST_SESSION = range(8)
M_LAST_IMAGE, M_SKIP0, M_SKIP1, M_SKIP2, M_UNREPORTED, M_READS = 8, 9, 10, 11, 12, 13
M_FOREIGN_NS, M_RAN_NS = 14, 15
MISC_FIELDS = 32


def image_tables(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Zeroed image records and gap tables for ``n`` images."""
    return np.zeros(n, dtype=IMAGE), np.zeros((n, GAPS_MAX), dtype=GAP)
