"""The nodes that unicast transports send to, as a control service names them, and which are heard.

A transport with a list of peers of its own keeps to it. Each other one gets all of its list at
once, by a command in its sender's thread; a list that is not sound changes nothing. By beacons
a node that publishes nothing differs from a node that is not reached. `Paths` watches for packets
that the network or the kernel does not carry. Called with the node's lock held.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidecast import events
from tidecast.api.node import PeerAddress
from tidecast.config.check import shown, unicast_problem
from tidecast.config.topology import NODE_ID_MAX, PEERS_MAX
from tidecast.layout import counters as counters_layout
from tidecast.layout import recorder as rec
from tidecast.layout.counters import NodeCounter
from tidecast.layout.counters import TransportCounter as C
from tidecast.node.context import NodeContext
from tidecast.node.live.transports import TransportRuntime
from tidecast.transport import wire_io
from tidecast.transport.sockets import host_and_port, packet_bytes_max

SILENT_S = 10.0
"""Ten beacons: a peer that is not heard for so long is reported."""
LOOK_S = 1.0
PATHS_LOOK_S, REFUSED_S = 5.0, 10.0
AGAIN_S_MAX = 320.0
"""Longest time between two attempts to send segments to a target that gets none."""


@dataclass(slots=True)
class Target:
    """A peer of a transport. ``silent``: that was reported.

    ``quiet_s``: since when it is not heard, or is a peer, by the time in which the node has run.
    """

    peer: PeerAddress
    quiet_s: float
    heard_ns: int = 0
    silent: bool = False


class _About(NamedTuple):
    """The fields of both events about a peer."""

    transport: str
    node: str
    node_id: int
    address: str


class Targets:
    """See module. ``report``: takes events about other nodes, at a bounded rate."""

    def __init__(self, ctx: NodeContext, report: Callable[[events.Event], None]) -> None:
        self._ctx, self._report = ctx, report
        self._of: dict[str, dict[int, Target]] = {}
        self._next_look_s = 0.0

    def set(self, wanted: Mapping[str, Sequence[PeerAddress]]) -> dict[str, str]:
        """Send to these peers from now on, by transport; the problems, by transport."""
        problems = {}
        for name, peers in wanted.items():
            lanes = self._ctx.runtimes.of(name)
            if not lanes or lanes[0].config.kind != "udp-unicast" or lanes[0].config.peers:
                continue
            others = [each for each in peers if each.node_id != self._ctx.id]
            problem = _problem(others)
            if problem:
                problems[name] = problem
                self._ctx.count(NodeCounter.PEERS_REFUSED)
            else:
                self._put(lanes, others)
        return problems

    def _put(self, lanes: list[TransportRuntime], peers: list[PeerAddress]) -> None:
        known = self._of.setdefault(lanes[0].config.name, {})
        wanted = {each.node_id: each for each in peers}
        if wanted == {node_id: target.peer for node_id, target in known.items()}:
            return
        left = frozenset(known.keys() - wanted.keys())
        moved = {
            node_id: (known[node_id].peer.host, known[node_id].peer.port)
            for node_id in known.keys() & wanted.keys()
            if known[node_id].peer.where != wanted[node_id].where
        }
        for runtime in lanes:
            runtime.set_peers(peers, left=left, moved=moved)
        new = wanted.keys() - known.keys()
        for node_id in left:
            del known[node_id]
        for node_id, peer in wanted.items():
            if node_id in new or node_id in moved:
                heard_ns = _heard_ns(lanes, node_id)
                known[node_id] = Target(peer, self._ctx.ran_s, heard_ns)
            else:
                known[node_id].peer = peer
        self._ctx.note(
            rec.LOW,
            rec.Code.PEERS_CHANGED,
            lanes[0].index,
            len(peers),
            len(new),
            len(moved),
            len(left),
        )

    def tick(self, now_s: float) -> None:
        """Report peers that fell silent, and peers that are heard again."""
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_S
        for name, known in self._of.items():
            lanes = self._ctx.runtimes.of(name)
            if not lanes:  # the node has stopped
                continue
            for target in known.values():
                self._look(lanes, target)

    def _look(self, lanes: list[TransportRuntime], target: Target) -> None:
        peer, name = target.peer, lanes[0].config.name
        heard_ns, ran_s = _heard_ns(lanes, peer.node_id), self._ctx.ran_s
        if heard_ns != target.heard_ns:
            target.heard_ns, target.quiet_s = heard_ns, ran_s
        silence_s = ran_s - target.quiet_s
        if (silence_s >= SILENT_S) == target.silent:
            return
        target.silent = not target.silent
        about = _About(name, peer.node, peer.node_id, peer.where)
        if not target.silent:
            self._report(events.PeerHeard(**about._asdict()))
            return
        self._ctx.count(NodeCounter.PEERS_SILENT)
        millis = int(silence_s * 1000)
        self._ctx.note(rec.ALERT, rec.Code.PEER_UNHEARD, peer.node_id, lanes[0].index, millis)
        self._report(events.PeerSilent(**about._asdict(), silence_s=round(silence_s, 1)))

    def rows(self) -> list[dict[str, Any]]:
        """One mapping a peer. ``heard_age_s`` None: it was never heard."""
        now_ns, found = self._ctx.clock_ns(), []
        for name, known in self._of.items():
            lanes = self._ctx.runtimes.of(name)
            if not lanes:  # the node has stopped
                continue
            for target in known.values():
                heard_ns = _heard_ns(lanes, target.peer.node_id)
                age_s = max(now_ns - heard_ns, 0) / 1e9 if heard_ns else None
                found.append(
                    {
                        "transport": name,
                        "node": target.peer.node,
                        "node_id": target.peer.node_id,
                        "address": target.peer.where,
                        "heard_age_s": None if age_s is None else round(age_s, 3),
                        "silent": target.silent,
                    }
                )
        return found


@dataclass(slots=True)
class _Path:
    """The counters row of a transport, and its counts at the last report."""

    row: int
    narrow: dict[bytes, int] = field(default_factory=dict)
    """The MTU of each target whose packets become fragments."""
    again: dict[bytes, tuple[float, float]] = field(default_factory=dict)
    """When to send segments to a refused target again, and the seconds to wait after that."""
    errors: int = 0
    reported_s: float = -REFUSED_S


class Paths:
    """Which targets of UDP transports are reached by whole packets, and which sends are refused."""

    def __init__(self, ctx: NodeContext, report: Callable[[events.Event], None]) -> None:
        self._ctx, self._report = ctx, report
        self._of: dict[str, _Path] = {}
        self._next_look_s = 0.0

    def tick(self, now_s: float) -> None:
        """Look at all transports."""
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + PATHS_LOOK_S
        for name in self._ctx.runtimes:
            lanes = self._ctx.runtimes.of(name)
            if not lanes or lanes[0].sockets is None:
                continue
            path = self._of.get(name)
            if path is None:
                about = name, f"{name} {lanes[0].config.kind}"
                path = _Path(self._ctx.counters.allocate(counters_layout.ROW_TRANSPORT, *about))
                self._of[name] = path
            self._look(lanes, path, now_s)
            self._count(lanes, path, now_s)

    def _look(self, lanes: list[TransportRuntime], path: _Path, now_s: float) -> None:
        runtime, values = lanes[0], self._ctx.counters.values[path.row]
        wire_bytes = runtime.wire_bytes
        mtus = {each: runtime.path_mtu(each) for each in runtime.target_addresses()}
        narrow = {each: mtu for each, mtu in mtus.items() if 0 < mtu < wire_bytes}
        for each, mtu in narrow.items():
            if path.narrow.get(each) == mtu:
                continue
            name = runtime.config.name
            self._ctx.note(rec.ALERT, rec.Code.PATH_NARROW, 0, runtime.index, mtu, wire_bytes)
            self._report(
                events.PathNarrow(
                    transport=name,
                    address=_where(each),
                    wire_bytes=wire_bytes,
                    mtu=mtu,
                    packet_bytes_max=packet_bytes_max(mtu, runtime.seal_bytes),
                )
            )
        _segment_again(lanes, path, mtus.keys() - narrow.keys(), now_s)
        path.narrow = narrow
        values[C.PATH_MTU] = min((mtu for mtu in mtus.values() if mtu), default=0)
        values[C.PACKET_BYTES], values[C.TARGETS_CUT] = wire_bytes, len(narrow)

    def _count(self, lanes: list[TransportRuntime], path: _Path, now_s: float) -> None:
        ios = [state.tx.io for runtime in lanes for state in (runtime.tx_state, runtime.rx_state)]
        errors = sum(int(io[wire_io.IO_ERRORS]) for io in ios)
        too_long = sum(int(io[wire_io.IO_TOO_LONG]) for io in ios)
        values = self._ctx.counters.values[path.row]
        values[C.SENDS_TOO_LONG], values[C.SENDS_REFUSED] = too_long, errors - too_long
        if errors == path.errors or now_s - path.reported_s < REFUSED_S:
            return
        sends, path.errors, path.reported_s = errors - path.errors, errors, now_s
        runtime = lanes[0]
        # A send that succeeded meanwhile leaves these as they are.
        io = max(ios, key=lambda each: int(each[wire_io.IO_ERRORS]))
        number, target = int(io[wire_io.IO_ERRNO]), int(io[wire_io.IO_REFUSING])
        addresses = runtime.target_addresses()
        address = addresses[target] if 0 <= target < len(addresses) else b""
        mtu = runtime.path_mtu(address) if address else 0
        self._ctx.note(rec.ALERT, rec.Code.SENDS_REFUSED, 0, runtime.index, number, sends, mtu)
        self._report(
            events.SendsRefused(
                transport=runtime.config.name,
                address=_where(address) if address else "",
                error=os.strerror(number),
                sends=sends,
                wire_bytes=runtime.wire_bytes,
                mtu=mtu,
            )
        )


def _segment_again(
    lanes: list[TransportRuntime], path: _Path, wide: Collection[bytes], now_s: float
) -> None:
    """Send segments again to refused targets whose path is wide: it may have been narrow before.

    No look sees a path that was narrow for a moment. Where the device takes no segments at all, the
    time between attempts doubles.
    """
    refused = [[a for a in lane.without_segments() if a in wide] for lane in lanes]
    before, path.again = path.again, {}
    for address in {a for of_lane in refused for a in of_lane}:
        at_s, wait_s = before.get(address, (now_s, PATHS_LOOK_S))
        if now_s >= at_s:
            path.again[address] = (now_s + wait_s, min(2 * wait_s, AGAIN_S_MAX))
        else:
            path.again[address] = (at_s, wait_s)
    for lane, addresses in zip(lanes, refused, strict=True):
        due = [a for a in addresses if path.again[a] != before.get(a)]
        if due:
            lane.segment_again(due)


def _where(address: bytes) -> str:
    host, port = host_and_port(address)
    return f"{host}:{port}"


def _heard_ns(lanes: list[TransportRuntime], node_id: int) -> int:
    """When any lane heard a node last; 0: never."""
    return max(runtime.heard_ns(node_id) for runtime in lanes)


def _problem(peers: Sequence[PeerAddress]) -> str:
    """Why a list is not taken; "" when it is sound. Kernels get its length and addresses."""
    if len(peers) > PEERS_MAX:
        return f"peers: {len(peers)} of them: allowed 0..{PEERS_MAX}; those of before stay"
    taken: dict[int | str, str] = {}
    for each in peers:
        if not 1 <= each.node_id <= NODE_ID_MAX:
            return f"peers: {shown(each.node)}: node_id: {each.node_id}: allowed 1..{NODE_ID_MAX}"
        problem = unicast_problem(each.host, each.port)
        if problem:
            return f"peers: {shown(each.node)}: {problem}"
        for key in (each.node_id, each.where):
            if key in taken:
                return f"peers: {shown(each.node)}: {key}: node {shown(taken[key])} has the same"
            taken[key] = each.node
    return ""
