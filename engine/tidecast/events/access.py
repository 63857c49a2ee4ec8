"""Events of engines, their gateways and their clients."""

from __future__ import annotations

from tidecast.events.base import Event


class EngineFault(Event, frozen=True):
    """A part of an engine has an error that is a fault of Tidecast. The engine continues.

    ``agent``: the conductor, or the thread of the error (``sender-multicast``). The job of the
    agent is not done; the traceback is in the engine's log. ``faults``: how many there were since
    the engine began; a fault that repeats is reported each ten seconds.
    """

    node: str
    problem: str
    faults: int
    agent: str = "conductor"


class EngineLost(Event, frozen=True):
    """The engine went away; the client reconnects on its own."""

    reason: str


class EngineBack(Event, frozen=True):
    """The client is connected to an engine again; publications and subscriptions are restored."""

    incarnation: int


class GatewayLost(Event, frozen=True):
    """The connection to a gateway broke; it is made again; published messages wait."""

    reason: str


class GatewayBack(Event, frozen=True):
    """The gateway is reached again. Not ``resumed``: it had forgotten the session.

    Then batches that were under way are published again and may arrive twice.
    """

    resumed: bool


class AccessDenied(Event, frozen=True):
    """A client lacks the right for its request, or showed no valid token (``key`` "").

    Of clients without a token one event a second is reported; ``unreported``: how many others there
    were since the event before. The counter has all.
    """

    key: str
    client: str
    right: str
    topic: str
    unreported: int = 0


AccessEvent = EngineFault | EngineLost | EngineBack | GatewayLost | GatewayBack | AccessDenied
