"""Keys of a lane of a sealed transport: the sender seals to all, the receiver to single nodes.

Each agent has an opener and a sealer of its own, changed in its own thread alone: the key of a
packet is never wiped while a kernel uses it. `SealedTransport` is made before the agents, and bound
to them afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tidecast.config.topology import TransportConfig
from tidecast.layout import sealed as lay
from tidecast.native.crypto.libcrypto import SUITE_NAMES, Libcrypto
from tidecast.native.handles import State
from tidecast.node.sealing.wire_keys import WireEpoch
from tidecast.protocol.sealing.keys import ALL, PacketKey, Purpose, packet_key, root_of
from tidecast.protocol.sealing.receiver import (
    EPOCHS_MAX,
    LEARNED,
    O_KEPT,
    O_READY,
    O_WANT_NS,
    ReceiverKeys,
    opener_state,
)
from tidecast.protocol.sealing.sender import TARGETS_MAX, SenderKeys, sealer_state

MODES = {"off": lay.MODE_OFF, "optional": lay.MODE_OPTIONAL, "required": lay.MODE_REQUIRED}
SUITES = {name: suite for suite, name in SUITE_NAMES.items()}
REFUSED_PAUSE_NS = 10_000_000
"""The pause after a packet without a known key: 100 derivations a second."""
_HALF_GENERATION_BITS = lay.GENERATION_BITS - 1


class Agents(Protocol):
    """The two agents of a transport: a command runs in the agent's thread, soon."""

    def post_sender(self, command: Callable[[], object]) -> None:
        """For the sender."""

    def post_receiver(self, command: Callable[[], object]) -> None:
        """For the receiver."""

    def set_seals(self, sender: bool) -> None:
        """Seal the packets of the sender, or else the receiver, from now on. In its thread."""


@dataclass(slots=True)
class _Side:
    """One agent's keys."""

    seals: SenderKeys
    sealer: State
    opens: ReceiverKeys
    opener: State


@dataclass(frozen=True, slots=True)
class _Epochs:
    """Roots of the accepted epochs, and the epoch that senders use; 0: none yet."""

    roots: dict[int, bytes]
    active: int


class SealedTransport:
    """See module. ``node``: this node's id. ``boot``: 64 random bits of this start.

    ``lane``: each has keys of its own, so no nonce is used twice under one key.
    """

    def __init__(
        self, config: TransportConfig, node: int, boot: int, library: Libcrypto, lane: int = 0
    ) -> None:
        self.name, self._node, self._lane = config.name, node, lane
        self.mode = MODES[config.secure]
        self._suite = SUITES[config.cipher]
        self._epochs = _Epochs({}, 0)
        self._refused: frozenset[int] = frozenset()
        self._agents: Agents | None = None
        self._progress: tuple[int, ...] = ()
        self.sender, self.receiver = (self._side(node, boot, library) for _ in range(2))

    def _side(self, node: int, boot: int, library: Libcrypto) -> _Side:
        sealer = sealer_state(library, source=node, boot=boot, lane=self._lane, suite=self._suite)
        opener = opener_state(library, self.mode)
        return _Side(
            SenderKeys(sealer, library, self._key),
            sealer,
            ReceiverKeys(opener, library, node, self._key_of_member),
            opener,
        )

    # --- keys -------------------------------------------------------------------------------------

    def _key(self, purpose: Purpose) -> PacketKey:
        return packet_key(self._epochs.roots[purpose.epoch], self.name, purpose)

    def _key_of_member(self, purpose: Purpose) -> PacketKey | None:
        unknown = purpose.epoch not in self._epochs.roots
        if unknown or purpose.source in self._refused or purpose.source == self._node:
            return None
        return self._key(purpose)

    @property
    def active(self) -> int:
        """The epoch that this node's senders use; 0: none."""
        return self._epochs.active

    @property
    def accepted(self) -> tuple[int, ...]:
        """Epochs whose packets are taken."""
        return tuple(self._epochs.roots)

    def heard(self) -> dict[int, int]:
        """By epoch: the monotonic time of the newest authentic packet whose sender uses it now."""
        found: dict[int, int] = {}
        for side in (self.sender, self.receiver):
            senders = side.opener.senders[side.opener.senders["epoch"] > 0]
            for epoch, at_ns in zip(senders["epoch"], senders["heard_ns"], strict=True):
                found[int(epoch)] = max(found.get(int(epoch), 0), int(at_ns))
        return found

    def serve(self, agents: Agents) -> None:
        """The agents are there: give them their keys."""
        self._agents = agents
        self.refresh()

    def use(self, accepted: Sequence[WireEpoch], active: int) -> None:
        """Take packets of these epochs, the two newest of them, and seal under ``active``.

        Without an active epoch senders seal nothing: they send plain packets before the first one
        (`optional`), and hold theirs back after the last.
        """
        newest = accepted[-EPOCHS_MAX:]
        known = self._epochs.roots
        roots = {each.epoch: known.get(each.epoch) or root_of(each.secret) for each in newest}
        self._epochs = _Epochs(roots, active if active in roots else 0)
        self.refresh()

    def refuse(self, nodes: frozenset[int]) -> None:
        """These nodes may not send: their keys are wiped."""
        gone, self._refused = nodes - self._refused, nodes
        if self._agents is None or not gone:
            return

        def forget(side: _Side) -> None:
            for node in gone:
                side.opens.forget(node)

        self._agents.post_sender(lambda: forget(self.sender))
        self._agents.post_receiver(lambda: forget(self.receiver))

    def refresh(self) -> None:
        """Let each agent make the keys that it needs now and next."""
        if self._agents is not None:
            self._agents.post_sender(self._refresh_sender)
            self._agents.post_receiver(self._refresh_receiver)

    def prepare(self) -> None:
        """`refresh` when some sender is through half of a generation. Cheap enough for a tick."""
        sides = (self.sender, self.receiver)
        progress = tuple(int(side.sealer.sealer[0]["next"]) for side in sides)
        progress += tuple(int(side.opener.highest.max()) for side in sides)
        halves = tuple(number >> _HALF_GENERATION_BITS for number in progress)
        if halves != self._progress:
            self._progress = halves
            self.refresh()

    def _refresh_sender(self) -> None:
        self.sender.opens.update(self.accepted)
        self._activate(self.sender, (ALL,))

    def _refresh_receiver(self) -> None:
        self.receiver.opens.update(self.accepted)
        self._activate(self.receiver, self.receiver.opens.sources()[:TARGETS_MAX])

    def _activate(self, side: _Side, targets: tuple[int, ...]) -> None:
        if not self._epochs.active:
            side.seals.close()
            if self.mode == lay.MODE_REQUIRED and self._agents is not None:
                self._agents.set_seals(side is self.sender)
            return
        side.seals.activate(self._epochs.active, targets)
        assert self._agents is not None
        self._agents.set_seals(side is self.sender)

    def close(self) -> None:
        """Wipe all keys. The agents have ended."""
        for side in (self.sender, self.receiver):
            side.seals.close()
            side.opens.close()

    # --- unknown senders --------------------------------------------------------------------------

    def learn(self, of_sender: bool, now_ns: int) -> int:
        """Take in the sender of the packet that an agent kept; in that agent's thread.

        Returns 0 when none is kept, else an outcome of `ReceiverKeys.learn`.
        """
        side, other = (self.sender, self.receiver) if of_sender else (self.receiver, self.sender)
        control = side.opener.control
        n = int(control[O_KEPT])
        if n == 0:
            return 0
        packet = side.opener.unknown[:n].tobytes()
        control[O_KEPT] = 0
        outcome = side.opens.learn(packet, now_ns)
        if outcome == LEARNED:
            control[O_READY] = n
        else:
            control[O_WANT_NS] = now_ns + REFUSED_PAUSE_NS
            return outcome
        if not of_sender:
            self._refresh_receiver()
        assert self._agents is not None
        post = self._agents.post_receiver if of_sender else self._agents.post_sender
        post(lambda: self._expect(other, packet, now_ns))
        return outcome

    def _expect(self, side: _Side, packet: bytes, now_ns: int) -> None:
        side.opens.expect(packet, lay.FLAG_PAIR if side is self.sender else 0, now_ns)
        if side is self.receiver:
            self._refresh_receiver()
