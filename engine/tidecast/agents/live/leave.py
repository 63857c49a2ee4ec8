"""Leaving a session: one STATUS with LEAVE, sent when no subscription here reads it any more."""

from __future__ import annotations

from tidecast.agents.live.images import RECEIVER
from tidecast.agents.live.receiving import ring_of, send_status
from tidecast.layout import packet as wire
from tidecast.native.jit import held_kernel

_receiver_of = RECEIVER.of


@held_kernel
def leave_session(words, i, now_ns):
    """Tell the publisher of image ``i`` to forget us."""
    S = _receiver_of(words)
    image = S.images[i]
    send_status(S, image, ring_of(image), wire.FLAG_LEAVE, now_ns)
