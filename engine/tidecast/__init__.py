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
from typing import TYPE_CHECKING, Any

from tidecast import supported
from tidecast.version import VERSION

supported.check_python()

__version__ = VERSION

if TYPE_CHECKING:
    from tidecast import codecs, errors, events, sync
    from tidecast.api.start import Earliest, Latest, Time, Tokens
    from tidecast.app import App
    from tidecast.client.admin.types import Cursor, Member, Moved, Peeked, SubscriptionInfo
    from tidecast.client.aio import Connection, Publisher, Replies, Responder, Subscription
    from tidecast.client.connecting import connect
    from tidecast.client.core.message import Batch, Message
    from tidecast.client.core.outgoing import BatchResult, Refused
    from tidecast.client.requests.responder import Request
    from tidecast.codecs import Json, MsgPack, Raw
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
        SharedMemoryError,
        TidecastError,
        Timeout,
    )
    from tidecast.rest.aio import Control

_ERRORS = (
    "AuthError", "BackPressure", "Closed", "CodecError", "ConfigError", "Conflict",
    "ConnectionLost", "EngineNotRunning", "Fenced", "ForkedProcess", "GapError", "NoResponders",
    "NotFound", "PayloadTooLarge", "RateLimited", "RequestFailed", "RequestTimeout",
    "ResponderLost", "SharedMemoryError", "TidecastError", "Timeout",
)  # fmt: skip
_HOMES = {
    **dict.fromkeys(
        ("Connection", "Publisher", "Replies", "Responder", "Subscription"), "client.aio"
    ),
    "App": "app",
    **dict.fromkeys(
        ("Cursor", "Member", "Moved", "Peeked", "SubscriptionInfo"), "client.admin.types"
    ),
    "TopicConfig": "config.topology",
    "Control": "rest.aio",
    "Request": "client.requests.responder",
    "connect": "client.connecting",
    **dict.fromkeys(("Batch", "Message"), "client.core.message"),
    **dict.fromkeys(("Earliest", "Latest", "Time", "Tokens"), "api.start"),
    **dict.fromkeys(("Json", "MsgPack", "Raw"), "codecs"),
    **dict.fromkeys(_ERRORS, "errors"),
    **dict.fromkeys(("BatchResult", "Refused"), "client.core.outgoing"),
    "compile_handler": "client.compiled",
}
_MODULES = ("app", "codecs", "errors", "events", "rest", "sync", "testing")

__all__ = [
    "App", "AuthError", "BackPressure", "Batch", "BatchResult", "Closed", "CodecError",
    "ConfigError", "Conflict", "Connection", "ConnectionLost", "Control", "Cursor", "Earliest",
    "EngineNotRunning", "Fenced", "ForkedProcess", "GapError", "Json", "Latest", "Member",
    "Message", "Moved", "MsgPack", "NoResponders", "NotFound", "PayloadTooLarge", "Peeked",
    "Publisher", "RateLimited", "Raw", "Refused", "Replies", "Request", "RequestFailed",
    "RequestTimeout", "Responder", "ResponderLost", "SharedMemoryError", "Subscription",
    "SubscriptionInfo", "TidecastError", "Time", "Timeout", "Tokens", "TopicConfig", "codecs",
    "compile_handler", "connect", "errors", "events", "sync",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
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
