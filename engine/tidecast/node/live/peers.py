"""Other nodes, as their SETUP packets introduce them: incarnations, addresses, how many.

Packets carry no proof of their sender, so the node trusts a SETUP only as far as it does no lasting
harm. A newer incarnation of a node waits while the older is heard from another address. An
incarnation in the future is refused unless all packets are sealed. A node that sends now replaces a
node that fell silent.

Called with the node's lock held.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from tidecast import events
from tidecast.layout import recorder as rec
from tidecast.layout import sealed as lay
from tidecast.layout.counters import NodeCounter
from tidecast.node.context import NodeContext
from tidecast.node.live.setup import Setup
from tidecast.node.live.transports import TransportRuntime, host_of, note_name
from tidecast.node.state import Peer

AHEAD_NS_MAX = 24 * 3600 * 1_000_000_000
"""An incarnation is a time of day: a SETUP without a proof may be ahead of the clock by a day."""
ALIVE_NS = 1_000_000_000
PEERS_MAX = 4096
EVENTS_A_SECOND, EVENTS_MAX = 64, 256


@dataclass(slots=True)
class EventRate:
    """Bounds the events that strangers can cause. ``now_s`` is passed in."""

    left: float = EVENTS_MAX
    since_s: float = 0.0
    refused: dict[Hashable, None] = field(default_factory=dict)
    """Sessions and strangers whose refusal was reported."""

    def allows(self, now_s: float) -> bool:
        """One more event may be reported now."""
        earned = max(now_s - self.since_s, 0.0) * EVENTS_A_SECOND
        self.left, self.since_s = min(self.left + earned, EVENTS_MAX), now_s
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True

    def is_first(self, refused: Hashable) -> bool:
        """The refusal of a session or a stranger was not reported yet."""
        if refused in self.refused:
            return False
        while len(self.refused) >= PEERS_MAX:
            del self.refused[next(iter(self.refused))]
        self.refused[refused] = None
        return True


class Peers:
    """See module. ``name_seen``: called with the name of a node that introduced itself."""

    def __init__(self, ctx: NodeContext, name_seen: Callable[[str], None]) -> None:
        self._ctx, self.name_seen = ctx, name_seen
        self.by_id: dict[int, Peer] = {}
        self._rate = EventRate()

    def report(self, event: events.Event) -> None:
        """An event about another node, for all clients; above the rate it is only counted."""
        if self._rate.allows(self._ctx.now_s()):
            self._ctx.notify_all(event)
        else:
            self._ctx.count(NodeCounter.PEER_EVENTS_DROPPED)

    def accept(self, runtime: TransportRuntime, setup: Setup) -> bool:
        """Know the node that sent a SETUP. False: it is refused, and may try again in a second."""
        if setup.platform and runtime.config.platform not in ("", setup.platform):
            return self._refuse_stranger(runtime, setup)
        if setup.critical:
            unknown = events.SetupNotUnderstood(
                topic=setup.topic, node=setup.node, session=setup.session, field=setup.critical
            )
            return self._refuse(setup, rec.Code.SETUP_REFUSED, unknown)
        known, now_ns = self.by_id.get(setup.source), self._ctx.clock_ns()
        host = host_of(runtime, setup.address_words)
        proven = runtime.sealed is not None and runtime.sealed.mode == lay.MODE_REQUIRED
        if not proven and setup.incarnation > self._ctx.wall_ns() + AHEAD_NS_MAX:
            return self._refuse(setup, rec.Code.SETUP_REFUSED, _conflict(setup, known))
        if known is not None and setup.incarnation != known.incarnation:
            alive = self._alive_ns(known)
            silence_s = self._ctx.topology.node.image_timeout_s
            if setup.incarnation < known.incarnation:
                if now_ns - alive < silence_s * 1e9:
                    stale = events.StaleIncarnation(
                        node_id=setup.source, incarnation=setup.incarnation
                    )
                    return self._refuse(setup, rec.Code.STALE_INCARNATION, stale)
            elif now_ns - alive < ALIVE_NS and known.hosts.get(runtime.config.name, host) != host:
                return self._refuse(setup, rec.Code.SETUP_REFUSED, _conflict(setup, known))
            elif known.name != setup.node and now_ns - alive < ALIVE_NS:
                self._ctx.note(
                    rec.ALERT,
                    rec.Code.NODE_CONFLICT,
                    setup.session,
                    setup.source,
                    setup.incarnation,
                )
                self.report(_conflict(setup, known))
        if known is not None and setup.incarnation == known.incarnation:
            known.hear(now_ns)
            known.hosts.setdefault(runtime.config.name, host)
            return True
        self._make_room()
        self.by_id.pop(setup.source, None)
        self.by_id[setup.source] = Peer(
            setup.source, setup.node, setup.incarnation, now_ns, {runtime.config.name: host}
        )
        note_name(self._ctx.names, setup.source, setup.node)
        self.name_seen(setup.node)
        self.report(
            events.PeerJoined(node=setup.node, node_id=setup.source, incarnation=setup.incarnation)
        )
        return True

    def _refuse(self, setup: Setup, code: rec.Code, event: events.Event) -> bool:
        self._ctx.count(NodeCounter.SETUPS_REFUSED)
        if self._rate.is_first(setup.session):
            self._ctx.note(rec.ALERT, code, setup.session, setup.source, setup.incarnation)
            self.report(event)
        return False

    def _refuse_stranger(self, runtime: TransportRuntime, setup: Setup) -> bool:
        self._ctx.count(NodeCounter.FOREIGN_PLATFORM)
        if self._rate.is_first((runtime.config.name, setup.node, setup.platform)):
            self._ctx.note(
                rec.ALERT, rec.Code.SETUP_REFUSED, setup.session, setup.source, setup.incarnation
            )
            self.report(
                events.ForeignPlatform(
                    transport=runtime.config.name,
                    node=setup.node,
                    platform=setup.platform,
                    address=runtime.address_text(setup.address_words),
                )
            )
        return False

    def _alive_ns(self, peer: Peer) -> int:
        """When a node was heard last."""
        newest = peer.heard_ns
        for image in self._ctx.images_by_id.of("node", peer.id):
            if image.slot >= 0 and image.incarnation == peer.incarnation:
                record = image.runtime.rx_state.images[image.slot]
                newest = max(newest, int(record["heard_ns"]))
        return newest

    def _make_room(self) -> None:
        """Forget the nodes that have been silent longest."""
        while len(self.by_id) >= PEERS_MAX:
            del self.by_id[next(iter(self.by_id))]
            self._ctx.count(NodeCounter.PEERS_FORGOTTEN)

    def foreign(
        self, runtime: TransportRuntime, session: int, source: int, words: tuple[int, int]
    ) -> None:
        """An agent refused packets that came from a foreign address."""
        self.report(
            events.ForeignPackets(
                transport=runtime.config.name,
                session=session,
                node_id=source,
                address=runtime.address_text(words),
            ),
        )


def _conflict(setup: Setup, known: Peer | None) -> events.NodeConflict:
    before = known.name if known is not None else setup.node
    return events.NodeConflict(node_id=setup.source, names=(before, setup.node))
