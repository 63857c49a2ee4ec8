"""Which rights the frames of remote clients need: see `tidecast.node.access.rights`."""

from __future__ import annotations

from typing import Any

from tidecast.client.remote import frames, log_frames
from tidecast.node.access.rights import EVERY_TOPIC, Needed, to_administer, to_consume

_OF_WHAT_IS_OPEN = (
    frames.ClosePublication, frames.CloseSubscription, frames.CloseConsumer, frames.Publish,
    frames.Credit, frames.Acks, frames.ResumeConsumer, log_frames.LogCredit,
)  # fmt: skip
"""They name what the same client opened, which was checked then."""
_OF_NO_TOPIC = (frames.Hello, frames.Bye, frames.NodeIdOf, frames.Stats, log_frames.Topics)
"""Of ``Stats`` and ``Topics`` the answer holds only what the key covers."""


def of_frame(frame: Any) -> Needed:
    """(right, pattern) of a frame of a client, or of a reader of logs."""
    match frame:
        case frames.OpenPublication():
            yield "publish", frame.topic
        case frames.OpenSubscription():
            yield "subscribe", frame.pattern
        case frames.OpenConsumer():
            yield from to_consume(frame.pattern, frame.options)
        case frames.Administer():
            yield from to_administer(frame.action, frame.arguments)
        case log_frames.Bounds() | log_frames.AtTime() | log_frames.Cuts():
            yield "read_payloads", frame.topic
        case log_frames.Read():
            yield "read_payloads", frame.range.topic
        case _ if not isinstance(frame, (*_OF_WHAT_IS_OPEN, *_OF_NO_TOPIC)):
            yield "manage", EVERY_TOPIC
