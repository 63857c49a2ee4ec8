"""Many light receivers of one publisher in a simulation: gaps, timers and STATUS, and no rings.

They hear each packet as one node of the network hears it, a delay later, and answer from addresses
of their own. Their timers are drawn by the kernels of the true receiver.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support import packets
from tidecast.layout import packet as wire
from tidecast.native.jit import kernel
from tidecast.native.packing import unpack_from
from tidecast.protocol import flow_control, loss
from tidecast.testing import Network, SimulatedNode
from tidecast.testing.switch import Packet

FIRST_ADDRESS = 10_000
STATUS_NS = 200_000_000
GRACE_NS = 50_000
RETRY_NS = 2_000_000
STEP_NS = 100_000
Seqs = NDArray[np.int64]


@kernel
def _first_delays(group, round_trip_ns, draws):  # type: ignore[no-untyped-def]
    for i in range(draws.size):
        draws[i] = loss.first_delay_ns(GRACE_NS, group, round_trip_ns, draws[i])


@kernel
def _reports(identities, sampling, out):  # type: ignore[no-untyped-def]
    for i in range(identities.size):
        out[i] = int(flow_control.reports(identities[i], sampling))


def first_delays(group: int, round_trip_ns: int, draws: Seqs) -> Seqs:
    """Delays in ns before the first NAK, by receiver."""
    found = draws.copy()
    _first_delays(group, round_trip_ns, found)
    return found


class LightReceivers:
    """``count`` receivers of the publication of ``node``; ``via`` is a node that hears it, too.

    ``loses(packet)``: which of them a DATA packet does not reach, as indexes.
    """

    def __init__(
        self,
        net: Network,
        node: SimulatedNode,
        session: int,
        count: int,
        *,
        via: SimulatedNode,
        delay_us: float,
        seed: int = 1,
        loses: Callable[[Packet], Seqs] | None = None,
    ) -> None:
        self.net, self.node, self.session, self.via = net, node, session, via
        self.delay_ns = int(delay_us * 1000)
        self.loses = loses or (lambda packet: np.zeros(0, dtype=np.int64))
        self.random = np.random.default_rng(seed)
        self.identities = self.random.integers(1, 1 << 62, count, dtype=np.int64)
        self.reporters = np.arange(count)
        self.silent = False
        """They have all left: no more STATUS."""
        self.group, self.round_trip_ns, self.sampling, self.topic = 0, 0, 0, 0
        self.end = 0
        """Behind the newest packet that any of them has."""
        self.missing: dict[int, set[int]] = {}
        """Lost packet -> receivers without it."""
        self.losses = 0
        self.sent: Counter[int] = Counter()
        """Packets sent, by type."""
        self.repairs = 0
        self.repaired_ns: list[int] = []
        """How long each lost packet was missing at its first receiver to get it."""
        self._lost_ns: dict[int, int] = {}
        self._echo_ns = self._echo_at_ns = 0
        self._due: list[tuple[int, int, Callable[[], object]]] = []
        self._serial = itertools.count()
        net.intercept(self._hear)
        self._at(net.now_ns, self._report)

    def run(self, duration_us: float, until: Callable[[], Any] = lambda: False) -> bool:
        """Let time pass for the network and these receivers, until a condition holds."""
        end_ns = self.net.now_ns + int(duration_us * 1000)
        while not until():
            now_ns = self.net.now_ns
            while self._due and self._due[0][0] <= now_ns:
                heapq.heappop(self._due)[2]()
            if now_ns >= end_ns:
                return False
            next_ns = min(self._due[0][0] if self._due else end_ns, now_ns + STEP_NS, end_ns)
            self.net.run(max(next_ns - now_ns, 1) / 1000, until=until)
        return True

    def _at(self, due_ns: int, act: Callable[[], object]) -> None:
        heapq.heappush(self._due, (due_ns, next(self._serial), act))

    # --- from the publisher -----------------------------------------------------------------------

    def _hear(self, packet: Packet) -> None:
        mine = packet.source == self.node.id and packet.target == self.via.id
        if not mine or packet.session != self.session:
            return
        due_ns = packet.now_ns + self.delay_ns
        self._echo_ns, self._echo_at_ns = unpack_from("<q", packet.data, wire.TIME_AT)[0], due_ns
        if packet.type == wire.SETUP:
            self._at(due_ns, lambda: self._on_setup(packet.data))
        elif packet.type == wire.DATA:
            lost = self.loses(packet)
            self._at(due_ns, lambda: self._on_data(packet, lost))

    def _on_setup(self, raw: bytes) -> None:
        (receivers,) = unpack_from("<H", raw, wire.SETUP_RECEIVERS_AT)
        round_trip, sampling = unpack_from("<HB", raw, wire.SETUP_ROUND_TRIP_AT)
        (self.topic,) = unpack_from("<H", raw, wire.TOPIC_AT)
        self.group, self.round_trip_ns = receivers << sampling, round_trip * 10_000
        if sampling != self.sampling:
            self.sampling = sampling
            out = np.zeros(self.identities.size, dtype=np.int64)
            _reports(self.identities, sampling, out)
            self.reporters = np.flatnonzero(out)

    def _on_data(self, packet: Packet, lost: Seqs) -> None:
        now_ns, seq = self.net.now_ns, packet.seq
        self.end = max(self.end, seq + 1)
        if not packet.is_resent:
            if lost.size:
                self.losses += 1
                self._lost_ns[seq] = now_ns
                self.missing[seq] = set(lost.tolist())
                draws = self.random.integers(0, loss.BACKOFF_STEPS, lost.size)
                delays = first_delays(self.group, self.round_trip_ns, draws)
                order = np.argsort(delays, kind="stable")
                self._ask_in_turn(seq, lost[order], now_ns + delays[order], 0)
            return
        self.repairs += 1
        waiting = self.missing.get(seq)
        if waiting is None:
            return
        if seq in self._lost_ns:
            self.repaired_ns.append(now_ns - self._lost_ns.pop(seq))
        waiting &= set(lost.tolist())
        if not waiting:
            del self.missing[seq]

    # --- to the publisher -------------------------------------------------------------------------

    def _ask_in_turn(self, seq: int, order: Seqs, due_ns: Seqs, i: int) -> None:
        """The first NAKs of a packet: of those that still wait when their time has come."""

        def ask() -> None:
            self._ask(seq, int(order[i]), 0)
            if seq in self.missing and i + 1 < order.size:
                self._ask_in_turn(seq, order, due_ns, i + 1)

        self._at(int(due_ns[i]), ask)

    def _ask(self, seq: int, who: int, tries: int) -> None:
        if who not in self.missing.get(seq, ()):
            return
        raw = bytearray(packets.nak([(seq, 1)], **self._fields()))
        at = wire.NAK_RECEIVER_AT
        raw[at : at + 8] = int(self.identities[who]).to_bytes(8, "little")
        self._send(wire.NAK, bytes(raw), who)
        retry_ns = max(RETRY_NS, 2 * self.round_trip_ns) << min(tries, 6)
        self._at(self.net.now_ns + retry_ns, lambda: self._ask(seq, who, tries + 1))

    def _report(self) -> None:
        """All that are asked to report do, five times a second."""
        contiguous = min(self.missing, default=self.end)
        for who in self.reporters.tolist() if not self.silent else ():
            raw = packets.status(
                receiver_id=int(self.identities[who]),
                consumed=contiguous,
                contiguous=contiguous,
                time_ns=self._echo_ns,
                echo_delay_us=max(0, self.net.now_ns - self._echo_at_ns) // 1000,
                **self._fields(),
            )
            self._send(wire.STATUS, raw, who)
        self._at(self.net.now_ns + STATUS_NS, self._report)

    def _fields(self) -> dict[str, Any]:
        return {"session": self.session, "source": 60_000, "topic": self.topic}

    def _send(self, kind: int, raw: bytes, who: int) -> None:
        self.sent[kind] += 1
        source = FIRST_ADDRESS + who
        self._at(
            self.net.now_ns + self.delay_ns,
            lambda: self.net.switch.inject(self.node.id, raw, control=True, source=source),
        )
