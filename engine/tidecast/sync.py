"""The blocking client. The same names as `tidecast`'s, without ``await``.

    import tidecast.sync

    with tidecast.sync.connect() as client:
        with client.subscribe("logs") as messages:
            client.publish("logs", b"hello")
            message = messages.next(timeout=1.0)

Loaded when first used: importing this module is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidecast.client.blocking import (
        Connection,
        PendingReply,
        Publisher,
        Replies,
        Request,
        Responder,
        Subscription,
        connect,
    )
    from tidecast.client.consumer.blocking import Consumer
    from tidecast.client.consumer.message import DurableBatch, DurableMessage
    from tidecast.rest.blocking import Control

__all__ = [
    "Connection", "Consumer", "Control", "DurableBatch", "DurableMessage", "PendingReply",
    "Publisher", "Replies", "Request", "Responder", "Subscription", "connect",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Control":  # it needs no Numba
        from tidecast.rest.blocking import Control

        globals()[name] = Control
        return Control
    from tidecast.client import blocking
    from tidecast.client.consumer import blocking as consumer_blocking
    from tidecast.client.consumer import message

    home: Any = blocking
    if name.startswith("Durable"):
        home = message
    elif name == "Consumer":
        home = consumer_blocking
    value = globals()[name] = getattr(home, name)
    return value
