"""The blocking client. The same names as `tidecast`'s, without ``await``.

    import tidecast.sync

    with tidecast.sync.connect() as client:
        with client.subscribe("logs") as messages:
            client.publish("logs", b"hello")
            message = messages.next(timeout=1.0)

Loaded when first used: importing this module is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidecast.client.admin.blocking import Subscriptions, Topics
    from tidecast.client.blocking import (
        Connection,
        PendingReply,
        Publisher,
        Replies,
        Request,
        Responder,
        Subscription,
        Topic,
        TypedSubscription,
        connect,
    )
    from tidecast.client.consumer.blocking import Consumer
    from tidecast.client.consumer.message import DurableBatch, DurableMessage
    from tidecast.client.log.blocking import Records
    from tidecast.client.log.records import LogBatch, LogRecord
    from tidecast.client.typed.blocking import TypedConsumer
    from tidecast.client.typed.core import TypedMessage, TypedRecord
    from tidecast.rest.blocking import Control
else:
    _HOMES = {
        "client.admin.blocking": "Subscriptions Topics",
        "client.blocking": (
            "Connection PendingReply Publisher Replies Request Responder Subscription Topic "
            "TypedSubscription connect"
        ),
        "client.consumer.blocking": "Consumer",
        "client.consumer.message": "DurableBatch DurableMessage",
        "client.log.blocking": "Records",
        "client.log.records": "LogBatch LogRecord",
        "client.typed.blocking": "TypedConsumer",
        "client.typed.core": "TypedMessage TypedRecord",
        "rest.blocking": "Control",
    }
    _HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(f"tidecast.{_HOME_OF[name]}")
        value = globals()[name] = getattr(module, name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "Connection", "Consumer", "Control", "DurableBatch", "DurableMessage", "LogBatch", "LogRecord",
    "PendingReply", "Publisher", "Records", "Replies", "Request", "Responder", "Subscription",
    "Subscriptions", "Topic", "Topics", "TypedConsumer", "TypedMessage", "TypedRecord",
    "TypedSubscription", "connect",
]  # fmt: skip
