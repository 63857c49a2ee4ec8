"""Tidecast: a messaging platform in Python whose hot paths are compiled by Numba.

    import tidecast

    async with tidecast.connect() as client, client.subscribe("logs") as messages:
        await client.publish("logs", b"hello")
        async for message in messages:
            ...

`tidecast.sync` is the same without ``await``. Names are loaded when first used: importing this
package is quick and loads no Numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tidecast import supported
from tidecast.version import VERSION

supported.check_python()

__version__ = VERSION

if TYPE_CHECKING:
    from tidecast import app, codecs, errors, events, rest, sync, testing
    from tidecast.api.link import Link
    from tidecast.api.start import Earliest, Latest, Start, Time, Tokens
    from tidecast.api.words import (
        Ack,
        AckWhen,
        ChannelName,
        NodeMode,
        OnFull,
        OnGap,
        Outcome,
        PublishOptions,
        StartWord,
    )
    from tidecast.app import App
    from tidecast.client.admin.aio import Subscriptions, Topics
    from tidecast.client.admin.types import (
        Cancelled,
        CancelledOf,
        ConsumerInfo,
        Cursor,
        Member,
        Moved,
        Peeked,
        Scheduled,
        SubscriptionInfo,
    )
    from tidecast.client.aio import (
        Connection,
        Publisher,
        Replies,
        Responder,
        Responding,
        Subscription,
        Topic,
        TypedSubscription,
    )
    from tidecast.client.columns.batch import BatchHeaders, BatchOptions, Keys, Messages, Timestamps
    from tidecast.client.compiled import compile_handler
    from tidecast.client.connecting import Connecting, connect
    from tidecast.client.consumer.aio import Consumer, Opening
    from tidecast.client.consumer.core import Filter, OnError
    from tidecast.client.consumer.message import DurableBatch, DurableMessage
    from tidecast.client.core.connection import Health
    from tidecast.client.core.message import Batch, Message
    from tidecast.client.core.metadata import Headers
    from tidecast.client.core.outgoing import BatchResult, PublisherStats, Refused
    from tidecast.client.core.subscription import ImageStats
    from tidecast.client.links.open import ConnectOptions
    from tidecast.client.log.aio import Records
    from tidecast.client.log.records import LogBatch, LogRecord
    from tidecast.client.requests.responder import Request
    from tidecast.client.typed.aio import TypedConsumer, TypedOpening
    from tidecast.client.typed.core import TypedMessage, TypedRecord
    from tidecast.client.typed.options import (
        ConsumeOptions,
        Invalid,
        InvalidLive,
        SubscribeOptions,
    )
    from tidecast.codecs import Codec, Json, MsgPack, Raw
    from tidecast.config.topology import TopicConfig
    from tidecast.errors import (
        AuthError,
        BackPressure,
        Closed,
        CodecError,
        ConfigError,
        Conflict,
        ConnectionLost,
        EngineNotRunning,
        Fenced,
        ForkedProcess,
        GapError,
        NoResponders,
        NotFound,
        PayloadTooLarge,
        RateLimited,
        RequestFailed,
        RequestTimeout,
        ResponderLost,
        SequenceGap,
        SharedMemoryError,
        StorageError,
        TidecastError,
        Timeout,
    )
    from tidecast.events import Event
    from tidecast.native.arrow.interface import ArrowArray, ArrowStream
    from tidecast.rest.aio import Control
else:
    _HOMES = {
        "api.link": "Link",
        "api.start": "Earliest Latest Start Time Tokens",
        "api.words": (
            "Ack AckWhen ChannelName NodeMode OnFull OnGap Outcome PublishOptions StartWord"
        ),
        "app": "App",
        "client.admin.aio": "Subscriptions Topics",
        "client.admin.types": (
            "Cancelled CancelledOf ConsumerInfo Cursor Member Moved Peeked Scheduled "
            "SubscriptionInfo"
        ),
        "client.aio": (
            "Connection Publisher Replies Responder Responding Subscription Topic TypedSubscription"
        ),
        "client.columns.batch": "BatchHeaders BatchOptions Keys Messages Timestamps",
        "client.compiled": "compile_handler",
        "client.connecting": "Connecting connect",
        "client.consumer.aio": "Consumer Opening",
        "client.consumer.core": "Filter OnError",
        "client.consumer.message": "DurableBatch DurableMessage",
        "client.core.connection": "Health",
        "client.core.message": "Batch Message",
        "client.core.metadata": "Headers",
        "client.core.outgoing": "BatchResult PublisherStats Refused",
        "client.core.subscription": "ImageStats",
        "client.links.open": "ConnectOptions",
        "client.log.aio": "Records",
        "client.log.records": "LogBatch LogRecord",
        "client.requests.responder": "Request",
        "client.typed.aio": "TypedConsumer TypedOpening",
        "client.typed.core": "TypedMessage TypedRecord",
        "client.typed.options": "ConsumeOptions Invalid InvalidLive SubscribeOptions",
        "codecs": "Codec Json MsgPack Raw",
        "config.topology": "TopicConfig",
        "errors": (
            "AuthError BackPressure Closed CodecError ConfigError Conflict ConnectionLost "
            "EngineNotRunning Fenced ForkedProcess GapError NoResponders NotFound PayloadTooLarge "
            "RateLimited RequestFailed RequestTimeout ResponderLost SequenceGap SharedMemoryError "
            "StorageError TidecastError Timeout"
        ),
        "events": "Event",
        "native.arrow.interface": "ArrowArray ArrowStream",
        "rest.aio": "Control",
    }
    _HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
    _MODULES = ("app", "codecs", "errors", "events", "rest", "sync", "testing")

    def __getattr__(name: str) -> object:
        home = _HOME_OF.get(name)
        if home is not None:
            value = getattr(importlib.import_module(f"tidecast.{home}"), name)
        elif name in _MODULES:
            value = importlib.import_module(f"tidecast.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "Ack", "AckWhen", "App", "ArrowArray", "ArrowStream", "AuthError", "BackPressure", "Batch",
    "BatchHeaders", "BatchOptions", "BatchResult", "Cancelled", "CancelledOf", "ChannelName",
    "Closed", "Codec", "CodecError", "ConfigError", "Conflict", "ConnectOptions", "Connecting",
    "Connection", "ConnectionLost", "ConsumeOptions", "Consumer", "ConsumerInfo", "Control",
    "Cursor", "DurableBatch", "DurableMessage", "Earliest", "EngineNotRunning", "Event", "Fenced",
    "Filter", "ForkedProcess", "GapError", "Headers", "Health", "ImageStats", "Invalid",
    "InvalidLive", "Json", "Keys", "Latest", "Link", "LogBatch", "LogRecord", "Member",
    "Message", "Messages", "Moved", "MsgPack", "NoResponders", "NodeMode", "NotFound",
    "OnError", "OnFull", "OnGap", "Opening", "Outcome", "PayloadTooLarge", "Peeked",
    "PublishOptions", "Publisher", "PublisherStats", "RateLimited", "Raw", "Records", "Refused",
    "Replies", "Request", "RequestFailed", "RequestTimeout", "Responder", "ResponderLost",
    "Responding", "Scheduled", "SequenceGap", "SharedMemoryError", "Start", "StartWord",
    "StorageError", "SubscribeOptions", "Subscription", "SubscriptionInfo", "Subscriptions",
    "TidecastError", "Time", "Timeout", "Timestamps", "Tokens", "Topic", "TopicConfig",
    "Topics", "TypedConsumer", "TypedMessage", "TypedOpening", "TypedRecord",
    "TypedSubscription", "app", "codecs", "compile_handler", "connect", "errors", "events",
    "rest", "sync", "testing",
]  # fmt: skip
