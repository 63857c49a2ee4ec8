"""Make the state of a sender or a receiver: all tables, rings and scratch, nothing running yet."""

from __future__ import annotations

import numpy as np

from tidecast.agents.events import ATTENTION_FIELDS, event_ring
from tidecast.agents.live import images as image_table
from tidecast.agents.live import publications as publication_table
from tidecast.layout.packet import CONTROL_BYTES_MAX, NAME_BYTES_MAX, PACKET_BYTES_MAX
from tidecast.layout.sealed import LANES_MAX
from tidecast.native.handles import State
from tidecast.native.mapped import Bytes
from tidecast.protocol.sealing.receiver import no_opener
from tidecast.protocol.session_table import session_table
from tidecast.transport.faults import no_faults

SCRATCH_BYTES = 512
_BOUNCE_BYTES, _PACKET_BYTES, _RANGES = 64 * 1024, 2048, 64


def sender_state(
    tx: State,
    back: State,
    *,
    counters: np.ndarray,
    recorder: Bytes,
    bells: Bytes,
    opener: State | None = None,
    at_work: np.ndarray | None = None,
) -> State:
    """State of a sender; ``back`` is where its control packets come back to.

    ``opener``: of a sealed transport. ``at_work``: `lanes_at_work`, which its lanes share.
    """
    pubs, receivers, resends, setups = publication_table.publication_tables(
        publication_table.PUBLICATIONS_MAX
    )
    return publication_table.SENDER.make(
        pubs=pubs,
        receivers=receivers,
        resends=resends,
        setups=setups,
        index=np.zeros(publication_table.PUBLICATIONS_MAX, dtype=np.int64),
        sessions=session_table(),
        tx=tx,
        rx=back,
        opener=no_opener() if opener is None else opener,
        bounce=np.zeros(_BOUNCE_BYTES, dtype=np.uint8),
        compact=np.zeros(_BOUNCE_BYTES, dtype=np.uint8),
        events=event_ring(),
        attention=np.zeros(ATTENTION_FIELDS, dtype=np.int64),
        counters=counters,
        recorder=recorder,
        bells=bells,
        packet=np.zeros(_PACKET_BYTES, dtype=np.uint8),
        misc=np.zeros(publication_table.MISC_FIELDS, dtype=np.int64),
        bucket=np.zeros(4, dtype=np.float64),
        at_work=lanes_at_work() if at_work is None else at_work,
        refused=np.zeros(1024, dtype=np.int64),
        former=np.zeros(publication_table.FORMER_MAX, dtype=np.int64),
        names=np.zeros((publication_table.NAMES_KEPT_MAX, NAME_BYTES_MAX), dtype=np.uint8),
    )


def lanes_at_work() -> np.ndarray:
    """When each lane of a transport wanted to send at its limit; a cache line a lane."""
    return np.zeros((LANES_MAX, 8), dtype=np.int64)


def receiver_state(
    rx: list[State],
    tx: State,
    *,
    name: str,
    counters: np.ndarray,
    recorder: Bytes,
    bells: Bytes,
    seed: int,
    opener: State | None = None,
) -> State:
    """State of a receiver: ``rx`` for each channel, ``tx`` for NAK and STATUS.

    ``opener``: for a sealed transport.
    """
    images, gaps = image_table.image_tables(image_table.IMAGES_MAX)
    return image_table.RECEIVER.make(
        images=images,
        gaps=gaps,
        index=np.zeros(image_table.IMAGES_MAX, dtype=np.int64),
        sessions=session_table(),
        wanted=np.zeros(1024, dtype=np.int64),
        heard=np.zeros(image_table.NODES, dtype=np.int64),
        quarantine=np.zeros(1024, dtype=np.int64),
        setups=np.zeros((image_table.SETUPS_KEPT_MAX, CONTROL_BYTES_MAX), dtype=np.uint8),
        rx0=rx[0],
        rx1=rx[1],
        rx2=rx[2],
        tx=tx,
        opener=no_opener() if opener is None else opener,
        faults=no_faults(),
        events=event_ring(),
        attention=np.zeros(ATTENTION_FIELDS, dtype=np.int64),
        counters=counters,
        recorder=recorder,
        bells=bells,
        packet=np.zeros(_PACKET_BYTES, dtype=np.uint8),
        expanded=np.zeros(PACKET_BYTES_MAX, dtype=np.uint8),
        name=np.frombuffer(bytearray(name.encode()), dtype=np.uint8),
        ranges=np.zeros((_RANGES, 2), dtype=np.int64),
        misc=np.zeros(image_table.MISC_FIELDS, dtype=np.int64),
        seed=np.full(1, seed | 1, dtype=np.int64),
    )
