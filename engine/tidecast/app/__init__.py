"""Applications: functions that handle messages, registered by decorators.

    import msgspec
    import tidecast

    app = tidecast.App("billing")

    class Order(msgspec.Struct):
        id: int

    @app.consumer("orders", "billing", concurrency=8, dead_letter="orders.failed")
    async def bill(order: Order) -> None:
        ...

`tidecast run billing:app` runs it.
"""

from tidecast.app.application import App, Running
from tidecast.app.handlers import Publish, Reject, Retry, RetryLater
from tidecast.app.parameters import Depends, Header, Key
from tidecast.client.consumer.message import DurableMessage

__all__ = [
    "App",
    "Depends",
    "DurableMessage",
    "Header",
    "Key",
    "Publish",
    "Reject",
    "Retry",
    "RetryLater",
    "Running",
]
