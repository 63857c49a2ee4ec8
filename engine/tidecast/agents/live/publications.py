"""The sender's state of its publications: each is a record of fixed types, without objects."""

from __future__ import annotations

import numpy as np

from tidecast.agents.events import EVENT_FIELDS
from tidecast.layout.counters import COLUMNS
from tidecast.layout.packet import CONTROL_BYTES_MAX, NAME_BYTES_MAX
from tidecast.native.handles import Kind
from tidecast.protocol.flow_control import RECEIVER, RECEIVERS_MAX
from tidecast.protocol.sealing.receiver import OPENER
from tidecast.transport.wire_io import RECEIVE_IO, SEND_IO

PUBLICATIONS_MAX = 4608
RESENDS_MAX = 512
NAMES_KEPT_MAX = 64

PUBLICATION = np.dtype(
    [
        ("active", np.int64),  # 0 free, 1 in use
        ("ring_address", np.int64),  # the ring's mapping
        ("ring_bytes", np.int64),
        ("resent_address", np.int64),  # int64[slots]: when each slot was last resent
        ("slots", np.int64),
        ("slot_bytes", np.int64),
        ("slots_at", np.int64),
        ("session", np.int64),
        ("topic", np.int64),
        ("channel", np.int64),
        ("flow", np.int64),
        ("reliability", np.int64),
        ("row", np.int64),  # counters row
        ("sent", np.int64),  # next packet to send
        ("open_seq", np.int64),  # open packet seen last, for linger
        ("open_ns", np.int64),  # when it was first seen with messages
        ("limit", np.int64),  # flow control: first packet that must not be sent
        ("lowest", np.int64),  # lowest consumed of all receivers
        ("tokens_packets", np.float64),
        ("tokens_bytes", np.float64),
        ("tokens_ns", np.int64),
        ("created_ns", np.int64),  # monotonic
        ("hold_until_ns", np.int64),  # first data waits for receivers to set up
        ("setup_ns", np.int64),  # next SETUP
        ("data_ns", np.int64),  # last data sent
        ("beat_ns", np.int64),  # next heartbeat
        ("beat_interval_ns", np.int64),  # doubles from probe to heartbeat
        ("rtt_ns", np.int64),  # smoothed, 0 = not known
        ("receivers", np.int64),  # with an entry
        ("sampling", np.int64),  # each of them stands for 2^sampling receivers
        ("sampled_ns", np.int64),  # when that last changed
        ("check_ns", np.int64),  # next look for silent receivers
        ("resends", np.int64),  # ranges waiting in the resend table
        ("ended", np.int64),  # END announced how many times
        ("index", np.int64),  # its own number
        ("place", np.int64),  # where it stands in the index
        ("quiet", np.int64),  # cycles without work
        ("near_limit", np.int64),
        ("opened", np.int64),  # `lowest` that the writer's limit was computed from
        ("error_ns", np.int64),  # last send error that was recorded
        ("receiver_timeout_ns", np.int64),
        ("heartbeat_ns", np.int64),
        ("close_linger_ns", np.int64),  # how long a closed session answers NAKs
        ("blocked_ns", np.int64),  # since when flow control blocks, 0 = it does not
        ("remote", np.int64),  # 1: durable, and its owner is another node
        ("consumer", np.int64),  # entry in the ring that ACKs move (remote)
        ("owner", np.int64),  # highest epoch of an owner that has acked
        ("owner_a", np.int64),  # 16 bytes: where its last ACK came from
        ("owner_b", np.int64),
        ("owner_ns", np.int64),  # and when
        ("owner_left", np.int64),  # it left the session with its last STATUS: another may follow
        ("former_a", np.int64),  # 16 bytes: address of the previous owner
        ("former_b", np.int64),
        ("claim_ns", np.int64),  # since when another address claims to be the next owner, 0: none
        ("joins", np.int64),  # receivers that may still join
        ("joins_ns", np.int64),  # when that was last increased
        ("credit", np.int64),  # packets that receivers without an entry may ask for again
        ("credit_sent", np.int64),
        ("credit_ns", np.int64),
        ("block_at", np.int64),  # offset of the producer's block in its SETUP
        ("published_at", np.int64),  # offset of the number of its messages there, 0: absent
        ("held_ns", np.int64),  # since when a receiver holds back half the ring, 0 = none does
        ("waits_ns", np.int64),  # the last cycle, if a limit held packets back in it, else 0
        ("waits_rate", np.int64),  # 1: it was the rate limit, 0: flow control
        ("rate_held_ns", np.int64),  # total time that the rate limit has held packets back
        ("flow_held_ns", np.int64),  # total time that flow control has held packets back
        ("wire_bytes", np.int64),  # of new packets, padding of segments and tables included
        ("tables", np.int64),  # 1: its topic and the cluster's level allow tables
        ("compacts", np.int64),  # 1: and it has receivers, and all of them read tables
        ("table_address", np.int64),  # the table's block, 0: none
        ("table_ns", np.int64),  # when all of the table was last to be defined again
        ("table_debt", np.int64),  # bytes of definitions that COMPACT packets have not saved yet
        ("table_skip", np.int64),  # packets to send in full, since tables saved little
        ("table_seen", np.int64),  # bytes that were looked at since that was last judged
        ("table_saved", np.int64),  # and saved of them
    ]
)

SENDER = Kind(
    "Sender",
    [
        ("pubs", PUBLICATION, ()),
        ("receivers", RECEIVER, (RECEIVERS_MAX,)),  # by publication
        ("resends", np.int64, (RESENDS_MAX, 2)),  # ranges to resend, by publication
        ("setups", np.uint8, (CONTROL_BYTES_MAX,)),  # prepared SETUP packets
        ("index", np.int64, ()),  # publications in use, busy ones in front
        ("sessions", np.int64, (2,)),  # session -> publication
        ("tx", SEND_IO, ()),
        ("rx", RECEIVE_IO, ()),  # where control packets come back
        ("opener", OPENER, ()),  # of control packets that are sealed
        ("bounce", np.uint8, ()),  # repairs, gathered; COMPACT packets, as they are made
        ("compact", np.uint8, ()),  # finished COMPACT packets, side by side
        ("events", np.int64, (EVENT_FIELDS,)),
        ("attention", np.int64, ()),
        ("counters", np.int64, (COLUMNS,)),
        ("recorder", np.uint8, ()),
        ("bells", np.uint8, ()),
        ("packet", np.uint8, ()),  # the packet under construction
        ("misc", np.int64, ()),  # M_*
        ("bucket", np.float64, ()),  # of the lane: packets, bytes, refilled_ns
        ("at_work", np.int64, (8,)),  # when each lane wanted to send at a limit; a line a lane
        ("refused", np.int64, ()),  # bitmap of nodes that are quarantined or cut off
        ("former", np.int64, ()),  # addresses that peers had before they moved, their first 8 bytes
        ("names", np.uint8, (NAME_BYTES_MAX,)),  # of receivers' nodes, for the conductor
    ],
)
"""All that a sender owns."""

HEARD_NEVER_NS = -(1 << 62)
"""``heard_ns`` of a receiver that is to be dropped: its node is no longer a peer, or has moved."""
FORMER_MAX = 192
"""Addresses of peers that moved, three each: a STATUS from there was still on its way."""
REMOVED = 2
"""Why a receiver was dropped: 0 silent, 1 stuck."""

M_COUNT, M_BUSY, M_CURSOR, M_NODE, M_ROW, M_INCARNATION, M_POLL_SKIP = 0, 1, 2, 3, 4, 5, 6
M_RATE_PACKETS, M_RATE_BYTES, M_SENDER_BELL, M_NAMES, M_FOREIGN_NS = 7, 8, 9, 10, 11
M_RAN_NS, M_BEACON_NS, M_LANE, M_LANES = 12, 13, 14, 15
"""M_BEACON_NS: when the next beacon is due; 0: the transport has no discovered peers."""
MISC_FIELDS = 32


def publication_tables(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Zeroed publication records, receivers, resend ranges and SETUP packets for ``n``."""
    return (
        np.zeros(n, dtype=PUBLICATION),
        np.zeros((n, RECEIVERS_MAX), dtype=RECEIVER),
        np.zeros((n, RESENDS_MAX, 2), dtype=np.int64),
        np.zeros((n, CONTROL_BYTES_MAX), dtype=np.uint8),
    )
