"""Which rights the frames of remote clients need: see `tidecast.node.access.rights`."""

from __future__ import annotations

from typing import Any

from tidecast.client.remote import frames as rf
from tidecast.client.remote import log_frames as lf
from tidecast.node.access.rights import EVERY_TOPIC, Needed, to_administer, to_consume

_OF_WHAT_IS_OPEN = (
    rf.ClosePublication, rf.CloseSubscription, rf.CloseConsumer, rf.Publish, rf.Credit, rf.Settle,
    rf.ResumeConsumer, lf.Credit,
)  # fmt: skip
"""They name what the same client opened, which was checked then."""
_OF_NO_TOPIC = (rf.Hello, rf.Bye, rf.NodeIdOf, rf.Stats, lf.Topics)
"""Of ``Stats`` and ``Topics`` the answer holds only what the key covers."""


def of_frame(frame: Any) -> Needed:
    """(right, pattern) of a frame of a client, or of a reader of logs."""
    match frame:
        case rf.OpenPublication():
            yield "publish", frame.topic
        case rf.OpenSubscription():
            yield "subscribe", frame.pattern
        case rf.OpenConsumer():
            yield from to_consume(frame.pattern, frame.options)
        case rf.Administer():
            yield from to_administer(frame.action, frame.arguments)
        case lf.Bounds() | lf.AtTime() | lf.Cuts():
            yield "read_payloads", frame.topic
        case lf.Read():
            yield "read_payloads", frame.range.topic
        case _ if not isinstance(frame, (*_OF_WHAT_IS_OPEN, *_OF_NO_TOPIC)):
            yield "manage", EVERY_TOPIC
