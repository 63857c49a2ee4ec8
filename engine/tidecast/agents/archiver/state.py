"""The archiver's state: durable topics, their rings, and the queues that store their messages.

A *source* is one ring of one producer's session. It has four positions, each a triple (packet,
offset in it, messages before): read, in the log, covered by the running sync, durable. All sources
of a topic advance together, so a position always is the end of a duty cycle.
"""

from __future__ import annotations

import numpy as np

from tidecast.agents.events import ATTENTION_FIELDS, EVENT_FIELDS, event_ring
from tidecast.layout.counters import COLUMNS
from tidecast.layout.member import WAKES_BYTES
from tidecast.native.handles import Kind, State
from tidecast.native.mapped import Bytes

TOPICS_MAX, SOURCES_MAX, QUEUES_MAX = 1024, 4608, 4096
QUEUE_BUFFER_BYTES = 512 * 1024
"""Bytes that one cycle may gather for one queue; it grows for longer messages."""

SOURCE = np.dtype(
    [
        ("active", np.int64),
        ("index", np.int64),
        ("next", np.int64),  # another source of the same topic, or -1
        ("ring_address", np.int64),
        ("ring_bytes", np.int64),
        ("slots", np.int64),
        ("slot_bytes", np.int64),
        ("slots_at", np.int64),
        ("consumer", np.int64),  # our entry in the ring
        ("seq", np.int64),  # read: next packet,
        ("at", np.int64),  # offset in it,
        ("count", np.int64),  # messages before
        ("a_seq", np.int64),  # appended
        ("a_at", np.int64),
        ("a_count", np.int64),
        ("p_seq", np.int64),  # covered by the sync under way
        ("p_at", np.int64),
        ("p_count", np.int64),
        ("d_seq", np.int64),  # durable, as written to the ring
        ("d_at", np.int64),
        ("d_count", np.int64),
        ("first_seq", np.int64),  # producer's sequence of the ring's first message
        ("producer", np.int64),
        ("epoch", np.int64),
        ("marks_address", np.int64),  # int64[queues]: last sequence in each queue
        ("marks", np.int64),  # number of queues that have room there
        ("drained_reported", np.int64),
        ("of_engine", np.int64),  # 1: the engine publishes: its records are REC_ENGINE
        ("gap_reported", np.int64),  # 1: its next packet cannot be read; the shell decides
    ]
)

TOPIC = np.dtype(
    [
        ("active", np.int64),
        ("index", np.int64),
        ("first_source", np.int64),  # or -1
        ("queues", np.int64),
        ("map_address", np.int64),  # int64[queues]: row in `queues` of each
        ("table_address", np.int64),  # uint16[slots of the mapper]
        ("policy", np.int64),  # SYNC_*
        ("interval_ns", np.int64),
        ("held", np.int64),  # HELD_*
        ("errno", np.int64),  # of the disk that refuses, else 0
        ("retry_ns", np.int64),
        ("dirty_ns", np.int64),  # when the oldest append not yet synced was made; 0: none
        ("urgent", np.int64),  # 1: a ring fills up, sync now
        ("syncing", np.int64),  # 0, SYNCING or STORING
        ("sync_status", np.int64),  # of that sync: 0 or -errno
        ("sync_retry_ns", np.int64),
        ("sync_failures", np.int64),  # in a row
        ("suspect", np.int64),  # 1: a sync failed; nothing is appended until one succeeds
        ("owner", np.int64),  # epoch of the lease on its queues, written into every batch
        ("stored", np.int64),  # 1: acks wait for the storage beside its logs, too
        ("awaited", np.int64),  # 1: report the next write (policy none), then 0
    ]
)

QUEUE = np.dtype(
    [
        ("active", np.int64),
        ("index", np.int64),
        ("topic", np.int64),
        ("log_address", np.int64),  # words of its LOG
        ("buffer_address", np.int64),
        ("buffer_bytes", np.int64),
        ("used", np.int64),  # bytes in the buffer, sealed batches first
        ("open_at", np.int64),  # where the open batch begins, or -1
        ("next_token", np.int64),
        ("row", np.int64),  # counters
        ("dirty", np.int64),  # 1: appended to since its last sync began
        ("roll_asked", np.int64),
        ("grow_bytes", np.int64),  # buffer asked for, 0: none
        ("puller", np.int64),  # 1 + its number at the puller, 0: no subscription reads it here
    ]
)

SYNC_NONE, SYNC_INTERVAL, SYNC_BATCH = 0, 1, 2
SYNC_NAMES = {"none": SYNC_NONE, "interval": SYNC_INTERVAL, "batch": SYNC_BATCH}
SYNCING, STORING = 1, 2
"""SYNCING: the running sync covers the topic. STORING: its sync is over, and the storage beside its
logs lacks some of the synced messages. In both states no other sync of the topic begins."""
HELD_NOT, HELD_ROLL, HELD_DISK = 0, 1, 2
"""Why a topic's buffers wait: not at all, for a new segment, for the disk."""

M_TOPICS, M_SYNC, M_SYNCS, M_CYCLES, M_PARKED = 0, 8, 16, 17, 24
"""Topics in use; state of the sync under way (a word of its own line); syncs; cycles; whether the
archiver is parked (a word of its own line)."""
MISC_FIELDS = 32
SYNC_IDLE, SYNC_ASKED, SYNC_DONE = 0, 1, 2
AWAKE, PARKED, BORROWED, AWAITED = 0, 1, 2, 3
"""The archiver works; it sleeps, and a thread may borrow its state; a thread has borrowed it; and
the archiver waits for that thread."""

E_ROLL, E_GROW, E_DRAINED, E_DISK, E_DISK_OK, E_GAP, E_SYNC_FAILED, E_WROTE = range(40, 48)
"""Events: (queue), (queue, bytes), (source), (topic, queue, errno), (topic), (source, first,
packets), (topic, errno), (topic)."""

ARCHIVER = Kind(
    "Archiver",
    [
        ("topics", TOPIC, ()),
        ("sources", SOURCE, ()),
        ("queues", QUEUE, ()),
        ("index", np.int64, ()),  # topics in use
        ("touched", np.int64, ()),  # queues that the source at hand has records for
        ("misc", np.int64, ()),  # M_*
        ("events", np.int64, (EVENT_FIELDS,)),
        ("attention", np.int64, ()),
        ("counters", np.int64, (COLUMNS,)),
        ("bells", np.uint8, ()),
        ("wakes", np.uint8, ()),  # of the puller
    ],
)
"""All that the archiver owns."""


def archiver_state(*, counters: np.ndarray, bells: Bytes) -> State:
    """The state of an archiver with nothing to do."""
    return ARCHIVER.make(
        topics=np.zeros(TOPICS_MAX, dtype=TOPIC),
        sources=np.zeros(SOURCES_MAX, dtype=SOURCE),
        queues=np.zeros(QUEUES_MAX, dtype=QUEUE),
        index=np.zeros(TOPICS_MAX, dtype=np.int64),
        touched=np.zeros(QUEUES_MAX, dtype=np.int64),
        misc=np.zeros(MISC_FIELDS, dtype=np.int64),
        events=event_ring(),
        attention=np.zeros(ATTENTION_FIELDS, dtype=np.int64),
        counters=counters,
        bells=bells,
        wakes=np.zeros(WAKES_BYTES, dtype=np.uint8),
    )
