"""The state of an app's processes: as an endpoint for health checks and Prometheus, and as lines.

A worker writes its state into a pipe, and the process that started it answers for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from tidecast.api.connecting import UNLOGGED
from tidecast.errors import ConfigError

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection
    from websockets.http11 import Request, Response

    from tidecast.app.application import App

REPORT_S = 1.0
SILENT_S = 10.0
"""A worker that has not reported for so long stands still: its event loop is blocked."""
TOTALS = ("handled", "retried", "rejected", "seconds")
COUNTERS = (*TOTALS, "active")


class State(msgspec.Struct):
    """One process of an app."""

    phase: str
    status: str = ""
    """Of its connection, see `Health.status`."""
    handlers: list[dict[str, Any]] = []
    at: float = 0.0
    """When it was reported: `time.monotonic`, seconds."""

    @property
    def live(self) -> bool:
        """Its event loop runs."""
        return time.monotonic() - self.at < SILENT_S

    @property
    def ready(self) -> bool:
        """It handles messages, and its connection is there."""
        return self.live and self.phase == "ready" and self.status == "connected"


States = Callable[[], dict[str, State]]
"""By name of the worker."""


def state_of(app: App) -> State:
    """The state of this process."""
    handlers = [
        each.describe() | {name: getattr(each.counts, name) for name in COUNTERS}
        for each in app.handlers
    ]
    connected = app.phase in ("ready", "draining")
    return State(
        phase=app.phase,
        status=app.client.health().status if connected else "",
        handlers=handlers,
        at=time.monotonic(),
    )


def add_totals(total: list[dict[str, Any]], handlers: list[dict[str, Any]]) -> None:
    """Add the counters of a process's handlers to the counters of the app."""
    total.extend(
        {k: v for k, v in each.items() if k not in COUNTERS} | dict.fromkeys(TOTALS, 0)
        for each in handlers[len(total) :]
    )
    for sums, each in zip(total, handlers, strict=False):
        for name in TOTALS:
            sums[name] = round(sums[name] + each[name], 6)


async def write_states(app: App, descriptor: int) -> None:
    """Write the state into a pipe, each second, until its reader closes it."""
    with contextlib.suppress(OSError):
        while True:
            write_state(app, descriptor)
            await asyncio.sleep(REPORT_S)


def write_state(app: App, descriptor: int) -> None:
    """Write the state into a pipe. Raises OSError when its reader is gone."""
    os.write(descriptor, msgspec.json.encode(state_of(app)) + b"\n")


# --- the endpoint ---------------------------------------------------------------------------------


@asynccontextmanager
async def serving(address: str, states: States) -> AsyncIterator[int]:
    """Answer health checks at HOST:PORT while the block runs; its port. Raises ConfigError.

    ``/livez``: 200 while all workers' event loops run. ``/readyz``: 200 while all handle messages.
    ``/metrics``: counters of all handlers, for Prometheus. Others are 503, with the reason.
    """
    from websockets.asyncio.server import serve

    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"health: {address!r}: allowed is HOST:PORT")

    def answer(connection: ServerConnection, request: Request) -> Response:
        status, text, kind = page(request.path.partition("?")[0], states())
        response = connection.respond(http.HTTPStatus(status), text)
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = kind
        return response

    async def refuse(connection: ServerConnection) -> None:
        """`answer` leaves no connection to be handled."""

    try:
        server = await serve(
            refuse,
            host.strip("[]"),
            int(port),
            process_request=answer,
            logger=UNLOGGED,
            server_header=None,
            open_timeout=5,
            max_size=1024,
        )
    except OSError as problem:
        raise ConfigError(
            f"health: {address!r}: {problem.strerror or problem}: choose another HOST:PORT"
        ) from None
    try:
        yield int(next(iter(server.sockets)).getsockname()[1])
    finally:
        server.close()
        await server.wait_closed()


def page(path: str, states: dict[str, State]) -> tuple[int, str, str]:
    """(HTTP status, text, content type) of a path."""
    if path == "/metrics":
        return 200, metrics(states), "text/plain; version=0.0.4; charset=utf-8"
    if path not in ("/livez", "/readyz"):
        return 404, "there are /livez, /readyz and /metrics\n", "text/plain; charset=utf-8"
    wanted = "live" if path == "/livez" else "ready"
    good = bool(states) and all(getattr(each, wanted) for each in states.values())
    body = {
        "status": "ok" if good else f"not {wanted}",
        "workers": {
            name: {
                "live": each.live,
                "phase": each.phase,
                "connection": each.status,
                "handlers": each.handlers,
            }
            for name, each in states.items()
        },
    }
    return 200 if good else 503, json.dumps(body) + "\n", "application/json"


_METRICS = {
    "handled": ("messages_handled_total", "counter", "Messages whose handler returned."),
    "retried": ("messages_retried_total", "counter", "Messages that are delivered again."),
    "rejected": ("messages_rejected_total", "counter", "Messages that were given up."),
    "active": ("calls_active", "gauge", "Calls of handlers under way."),
    "seconds": ("call_seconds_total", "counter", "Sum of the durations of calls."),
}


def metrics(states: dict[str, State]) -> str:
    """All counters in the text format of Prometheus."""
    lines = []
    for field, (name, kind, about) in _METRICS.items():
        lines += [f"# HELP tidecast_app_{name} {about}", f"# TYPE tidecast_app_{name} {kind}"]
        lines += [
            f"tidecast_app_{name}{{{_labels(worker, handler)}}} {handler[field]}"
            for worker, state in states.items()
            for handler in state.handlers
        ]
    lines += [
        "# HELP tidecast_app_ready Does the worker handle messages?",
        "# TYPE tidecast_app_ready gauge",
    ]
    lines += [
        f'tidecast_app_ready{{worker="{worker}"}} {int(state.ready)}'
        for worker, state in states.items()
    ]
    return "\n".join(lines) + "\n"


def _labels(worker: str, handler: dict[str, Any]) -> str:
    named = {"worker": worker, "handler": handler["name"], "topic": handler["topic"]}
    return ",".join(
        '{}="{}"'.format(name, str(value).replace("\\", r"\\").replace('"', r"\""))
        for name, value in named.items()
    )
