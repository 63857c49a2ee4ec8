"""`client.topics` and `client.subscriptions` of the asyncio client: each call is in a thread."""

from __future__ import annotations

from typing import Any

from tidecast.api.in_thread import in_thread
from tidecast.client.admin import blocking
from tidecast.client.admin.blocking import SUBSCRIPTION_CALLS, TOPIC_CALLS
from tidecast.client.core.public import Public


class Topics(Public):
    """Topics of the engine. See `tidecast.client.admin.blocking.Topics`, without ``await``."""

    PUBLIC = TOPIC_CALLS

    def __init__(self, connection: Any) -> None:
        self._blocking = blocking.Topics(connection)

    list = in_thread(blocking.Topics.list)
    get = in_thread(blocking.Topics.get)
    create = in_thread(blocking.Topics.create)
    ensure = in_thread(blocking.Topics.ensure)
    check = in_thread(blocking.Topics.check)
    edit = in_thread(blocking.Topics.edit)
    delete = in_thread(blocking.Topics.delete)
    pause = in_thread(blocking.Topics.pause)
    resume = in_thread(blocking.Topics.resume)
    scheduled = in_thread(blocking.Topics.scheduled)
    cancel_scheduled = in_thread(blocking.Topics.cancel_scheduled)


class Subscriptions(Public):
    """Durable subscriptions of the engine. See `tidecast.client.admin.blocking.Subscriptions`."""

    PUBLIC = SUBSCRIPTION_CALLS

    def __init__(self, connection: Any) -> None:
        self._blocking = blocking.Subscriptions(connection)

    list = in_thread(blocking.Subscriptions.list)
    get = in_thread(blocking.Subscriptions.get)
    create = in_thread(blocking.Subscriptions.create)
    ensure = in_thread(blocking.Subscriptions.ensure)
    check = in_thread(blocking.Subscriptions.check)
    delete = in_thread(blocking.Subscriptions.delete)
    pause = in_thread(blocking.Subscriptions.pause)
    resume = in_thread(blocking.Subscriptions.resume)
    seek = in_thread(blocking.Subscriptions.seek)
    peek = in_thread(blocking.Subscriptions.peek)
