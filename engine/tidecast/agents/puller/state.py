"""Tables of a puller: cursors, queues, blocks, members; made at once, touched when used."""

from __future__ import annotations

import numpy as np

from tidecast.agents.events import ATTENTION_FIELDS, EVENT_FIELDS, EVENTS_MAX
from tidecast.layout.member import ACK_REASON_BYTES_MAX, MEMBERS_MAX, QUEUES_MAX
from tidecast.native.handles import Kind, State
from tidecast.native.lines import lined_table
from tidecast.native.mapped import Bytes
from tidecast.queues.cache.blocks import BLOCK, QUEUE_BLOCKS_MAX
from tidecast.queues.cache.cache import QUEUE
from tidecast.queues.cache.cursors import CHAINS, CURSOR, CURSORS_MAX, SHARES
from tidecast.queues.cache.window import WINDOW_MAX

BLOCKS_MAX = 16_384
SAMPLES = 32

(E_FETCH, E_WINDOW, E_DEAD, E_HOSTILE, E_GONE) = range(40, 45)
"""Events: a queue wants a block (queue, token); a window is too small (cursor); a record is to be
dead-lettered (cursor, token, attempts, reason's kind); a member wrote invalid data (member); a
record that was to be delivered again is deleted (cursor, token)."""

DEAD_ATTEMPTS, DEAD_TERM, DEAD_TIMEOUT = 1, 2, 3

MEMBER = np.dtype(
    [
        ("active", np.int64),
        ("sub", np.int64),
        ("ring_address", np.int64),
        ("ring_bytes", np.int64),
        ("deliveries_bytes", np.int64),
        ("acks_bytes", np.int64),
        ("bell", np.int64),
        ("head", np.int64),  # position behind the last frame written
        ("published", np.int64),  # position the client knows
        ("released", np.int64),  # position the client gave back
        ("acks_read", np.int64),  # position in the acks
        ("in_flight", np.int64),
        ("in_flight_bytes", np.int64),
        ("in_flight_max", np.int64),
        ("in_flight_bytes_max", np.int64),
        ("full", np.int64),  # 1: no credit until well below the limit
        ("ring_full", np.int64),  # 1: a frame found no room
        ("fragment_cursor", np.int64),  # cursor that sends it a large record; -1
        ("fragment_token", np.int64),
        ("taken", np.int64),  # position that the client has taken, as seen last
        ("taken_ns", np.int64),  # when it was seen
        ("sample", np.int64),  # number of samples (taken, time) so far
        ("sample_ns", np.int64),  # least time between two samples
        ("touched", np.int64),  # 1: has unpublished frames
        ("hostile", np.int64),
        ("stale", np.int64),  # acks of cursors that are removed
        ("late", np.int64),  # acks of records that were completed before, or never delivered
        ("delivered", np.int64),
        ("acked", np.int64),
    ]
)

(
    P_CYCLE,
    P_CURSORS,
    P_TIMER_NS,
    P_ROTATE,
    P_TOUCHED,
    P_STAMP,
    P_BELL,
    P_DISCARD,
    P_DUE_NS,
    P_WALL_NS,
) = range(10)
MISC_FIELDS = 16
"""Words of the puller: cycle number, cursors in use, time of the next check of timers, where the
walk over ready cursors starts, members with unpublished frames, stamp of the scratch table of keys,
doorbell line, 1: blocks are discarded when their cursors pause (for comparison), the earliest time
at which a cursor's timer is due, time since 1970 minus the puller's clock."""
NEVER_NS = (1 << 62) - 1

PULLER = Kind(
    "Puller",
    [
        ("cursors", CURSOR, ()),
        ("index", np.int64, ()),  # cursors in use
        ("ready", np.int64, ()),  # bitmap of cursors
        ("links", np.int32, (2, 3)),  # by cursor
        ("chains", np.int32, ()),
        ("owners", np.uint16, (SHARES,)),  # by cursor
        ("heirs", np.uint16, (SHARES,)),  # the next owners of moving shares
        ("queues", QUEUE, ()),
        ("wanting", np.int64, ()),  # bitmap of queues that want a block
        ("scanning", np.int64, ()),  # bitmap of queues with new records for cursors of one stream
        ("held", np.int64, (QUEUE_BLOCKS_MAX,)),  # blocks by queue
        ("blocks", BLOCK, ()),
        ("spare", np.int64, ()),  # blocks that no queue holds
        ("spare_n", np.int64, ()),  # number of spare blocks
        ("members", MEMBER, ()),
        ("samples", np.int64, (SAMPLES, 2)),  # by member
        ("touched", np.int64, ()),  # members with unpublished frames
        ("stamps", np.int64, (2,)),  # scratch: keys met in a walk over a window
        ("events", np.int64, (EVENT_FIELDS,)),
        ("reasons", np.uint8, (ACK_REASON_BYTES_MAX,)),  # by event
        ("attention", np.int64, ()),
        ("wakes", np.uint8, ()),
        ("bells", np.uint8, ()),
        ("misc", np.int64, ()),
    ],
)


def puller_state(*, wakes: Bytes, bells: Bytes) -> State:
    """State of a puller without cursors. Some 6 MB of it is written to; the rest costs nothing."""
    misc = np.zeros(MISC_FIELDS, dtype=np.int64)
    misc[P_DUE_NS] = NEVER_NS
    return PULLER.make(
        cursors=lined_table(CURSORS_MAX, CURSOR),
        index=np.zeros(CURSORS_MAX, dtype=np.int64),
        ready=np.zeros(CURSORS_MAX // 64, dtype=np.int64),
        links=np.zeros((CURSORS_MAX, 2, 3), dtype=np.int32),
        chains=np.full(CHAINS, -1, dtype=np.int32),
        owners=np.zeros((CURSORS_MAX, SHARES), dtype=np.uint16),
        heirs=np.zeros((CURSORS_MAX, SHARES), dtype=np.uint16),
        queues=np.zeros(QUEUES_MAX, dtype=QUEUE),
        wanting=np.zeros(QUEUES_MAX // 64, dtype=np.int64),
        scanning=np.zeros(QUEUES_MAX // 64, dtype=np.int64),
        held=np.zeros((QUEUES_MAX, QUEUE_BLOCKS_MAX), dtype=np.int64),
        blocks=np.zeros(BLOCKS_MAX, dtype=BLOCK),
        spare=np.zeros(BLOCKS_MAX, dtype=np.int64),
        spare_n=np.zeros(1, dtype=np.int64),
        members=np.zeros(MEMBERS_MAX, dtype=MEMBER),
        samples=np.zeros((MEMBERS_MAX, SAMPLES, 2), dtype=np.int64),
        touched=np.zeros(MEMBERS_MAX, dtype=np.int64),
        stamps=np.zeros((2 * WINDOW_MAX, 2), dtype=np.int64),
        events=np.zeros((EVENTS_MAX, EVENT_FIELDS), dtype=np.int64),
        reasons=np.zeros((EVENTS_MAX, ACK_REASON_BYTES_MAX), dtype=np.uint8),
        attention=np.zeros(ATTENTION_FIELDS, dtype=np.int64),
        wakes=wakes,
        bells=bells,
        misc=misc,
    )
