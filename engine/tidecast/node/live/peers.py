"""Other nodes, as their SETUP packets introduce them: incarnations, addresses, how many.

Packets carry no proof of who sent them, so a SETUP is believed only as far as it does no lasting
harm: a newer incarnation of a node that is heard from elsewhere waits until that one is silent, an
incarnation in the future is refused, and the node that speaks now replaces one that fell silent.
Called with the node's lock held.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidecast import events as ev
from tidecast.layout import recorder as rec
from tidecast.layout.counters import NodeCounter
from tidecast.node.live.transports import TransportRuntime, host_of, note_name
from tidecast.node.state import Peer

if TYPE_CHECKING:
    from tidecast.node.live.setup import Setup
    from tidecast.node.node import Node

AHEAD_NS_MAX = 24 * 3600 * 1_000_000_000
"""An incarnation is a time of day: clocks that differ by more than a day are a fault."""
ALIVE_NS = 1_000_000_000
PEERS_MAX = 4096
EVENTS_A_SECOND, EVENTS_MAX = 64, 256


@dataclass(slots=True)
class EventRate:
    """Bounds the events that strangers can cause. ``now_s`` is passed in."""

    left: float = EVENTS_MAX
    since_s: float = 0.0
    refused: dict[int, None] = field(default_factory=dict)
    """Sessions whose refusal was reported."""

    def allows(self, now_s: float) -> bool:
        """One more event may be reported now."""
        earned = max(now_s - self.since_s, 0.0) * EVENTS_A_SECOND
        self.left, self.since_s = min(self.left + earned, EVENTS_MAX), now_s
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True

    def is_first(self, session: int) -> bool:
        """A session's refusal was not reported yet."""
        if session in self.refused:
            return False
        while len(self.refused) >= PEERS_MAX:
            del self.refused[next(iter(self.refused))]
        self.refused[session] = None
        return True


def report(node: Node, event: ev.Event) -> None:
    """An event about another node, for all clients; above the rate it is only counted."""
    if node.peer_events.allows(node.clock_ns() / 1e9):
        node.tell_all(event)
    else:
        node.counters.values[node.node_row, NodeCounter.PEER_EVENTS_DROPPED] += 1


def accept_peer(node: Node, runtime: TransportRuntime, setup: Setup) -> bool:
    """Know the node that sent a SETUP. False: it is refused, and may try again in a second."""
    known, now_ns = node.peers.get(setup.source), node.clock_ns()
    host = host_of(runtime, setup.address_words)
    if setup.incarnation > node.durable.wall_ns() + AHEAD_NS_MAX:
        return _refuse(node, setup, rec.Code.SETUP_REFUSED, _conflict(setup, known))
    if known is not None and setup.incarnation != known.incarnation:
        alive = _alive_ns(node, known)
        silence_s = node.topology.node.image_timeout_s
        if setup.incarnation < known.incarnation:
            if now_ns - alive < silence_s * 1e9:
                stale = ev.StaleIncarnation(node_id=setup.source, incarnation=setup.incarnation)
                return _refuse(node, setup, rec.Code.STALE_INCARNATION, stale)
        elif now_ns - alive < ALIVE_NS and known.hosts.get(runtime.config.name, host) != host:
            return _refuse(node, setup, rec.Code.SETUP_REFUSED, _conflict(setup, known))
        elif known.name != setup.node and now_ns - alive < ALIVE_NS:
            node.note(
                rec.ALERT, rec.Code.NODE_CONFLICT, setup.session, setup.source, setup.incarnation
            )
            report(node, _conflict(setup, known))
    if known is not None and setup.incarnation == known.incarnation:
        known.heard_ns = now_ns
        known.hosts.setdefault(runtime.config.name, host)
        return True
    _make_room(node)
    node.peers.pop(setup.source, None)
    node.peers[setup.source] = Peer(
        setup.source, setup.node, setup.incarnation, now_ns, {runtime.config.name: host}
    )
    note_name(node.names, setup.source, setup.node)
    node.name_seen(setup.node)
    report(
        node, ev.PeerJoined(node=setup.node, node_id=setup.source, incarnation=setup.incarnation)
    )
    return True


def _conflict(setup: Setup, known: Peer | None) -> ev.NodeConflict:
    before = known.name if known is not None else setup.node
    return ev.NodeConflict(node_id=setup.source, names=(before, setup.node))


def _refuse(node: Node, setup: Setup, code: rec.Code, event: ev.Event) -> bool:
    node.counters.values[node.node_row, NodeCounter.SETUPS_REFUSED] += 1
    if node.peer_events.is_first(setup.session):
        node.note(rec.ALERT, code, setup.session, setup.source, setup.incarnation)
        report(node, event)
    return False


def _alive_ns(node: Node, peer: Peer) -> int:
    """When a node was heard last."""
    newest = peer.heard_ns
    for image in node.images_by_id.of("node", peer.id):
        if image.slot >= 0 and image.incarnation == peer.incarnation:
            record = image.runtime.rx_state.images[image.slot]
            newest = max(newest, int(record["heard_ns"]))
    return newest


def _make_room(node: Node) -> None:
    """Forget those that were heard of longest ago."""
    while len(node.peers) >= PEERS_MAX:
        del node.peers[next(iter(node.peers))]
        node.counters.values[node.node_row, NodeCounter.PEERS_FORGOTTEN] += 1


def foreign(
    node: Node, runtime: TransportRuntime, session: int, source: int, words: tuple[int, int]
) -> None:
    """An agent refused packets that came from a foreign address."""
    report(
        node,
        ev.ForeignPackets(
            transport=runtime.config.name, session=session, node_id=source,
            address=runtime.address_text(words),
        ),
    )  # fmt: skip
