"""One lane of a transport at run time: sockets, the state of its two agents, and their threads.

A transport has one lane, or several that are alike: one lane sends a session, and one receives it
(`tidecast.node.lanes`).

Agents own their state. Other threads change it by a command (`on_sender`, `on_receiver`): it
runs in the agent's thread between two duty cycles, or at once when the agents are inline.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tidecast.agents.events import A_EVENTS, E_KEY, E_RECEIVER_NAME, EVENTS_MAX
from tidecast.agents.guard import OnFault
from tidecast.agents.idle import IDLE_NAMES
from tidecast.agents.live import images as image_table
from tidecast.agents.live import publications as publication_table
from tidecast.agents.run import (
    inline_agents,
    ring_bell_line,
    run_receiver,
    run_sender,
)
from tidecast.agents.runner import AgentRunner
from tidecast.agents.states import (
    SCRATCH_BYTES,
    lanes_at_work,
    receiver_state,
    sender_state,
)
from tidecast.api.node import PeerAddress
from tidecast.buffers.counters import CountersFile
from tidecast.config.topology import TransportConfig
from tidecast.errors import ConfigError
from tidecast.layout import counters as counters_layout
from tidecast.layout.packet import CHANNEL_ORDINARY, CHANNELS, SOURCE_AT
from tidecast.layout.sealed import SEAL_BYTES
from tidecast.native.mapped import Bytes
from tidecast.native.memory import address
from tidecast.native.system.filters import filter_packets
from tidecast.native.system.syscalls import NOW
from tidecast.node.sealing.transport_keys import SealedTransport
from tidecast.protocol.sealing.receiver import LEARNED
from tidecast.transport import wire_io
from tidecast.transport.sockets import (
    UDP_HEADERS_BYTES,
    TransportSockets,
    check_packet_fits,
    interface_address,
    no_filters,
    open_multicast,
    open_unicast,
    path_mtu,
    target_at,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lane:
    """The place of a lane in its transport. ``bell``: the doorbell line of its sender.

    ``beside``: of a further lane the port of the first one's sending socket. ``at_work``: of all
    lanes, see `tidecast.agents.states.lanes_at_work`.
    """

    number: int
    bell: int
    at_work: np.ndarray
    beside: int = 0


class Memory:
    """An in-memory network: the inboxes of each (node id, lane). One process, agents inline.

    A packet comes to the lane of a node that the number of its sender gives, modulo how many lanes
    that node has: see `tidecast.native.system.filters`.
    """

    def __init__(self, packet_bytes: int = 1400, inbox_packets: int = 4096) -> None:
        self.packet_bytes = packet_bytes
        self.inbox_packets = inbox_packets
        self.data: dict[tuple[int, int], np.ndarray] = {}
        self.control: dict[tuple[int, int], np.ndarray] = {}
        self.members: list[TransportRuntime] = []

    def join(self, runtime: TransportRuntime) -> None:
        """Give a lane of a node its inboxes, and make them known to all nodes."""
        self.data[runtime.place] = wire_io.make_inbox(self.inbox_packets, self.packet_bytes)
        self.control[runtime.place] = wire_io.make_inbox(self.inbox_packets, self.packet_bytes)
        self.members.append(runtime)

    def leave(self, runtime: TransportRuntime) -> None:
        """Take a node off the network. Its inboxes stay mapped for packets on their way."""
        self.members.remove(runtime)
        self.retarget()

    def targets(self, place: tuple[int, int]) -> list[list[bytes]]:
        """Addresses of all other nodes, for a lane."""
        lanes: dict[int, int] = {}
        for member in self.members:
            lanes[member.node_id] = member.config.lanes
        return [
            [struct.pack("<qq", address(self.data[node, sum(place) % n]), 0)] * CHANNELS
            for node, n in lanes.items()
            if node != place[0] and (node, sum(place) % n) in self.data
        ]

    def retarget(self) -> None:
        """Give every member the addresses of all others."""
        for member in self.members:
            member.set_targets(self.targets(member.place))


NAMES_MAX = 16_384


def note_name(names: dict[int, str], node_id: int, name: str) -> None:
    """Remember a node's name, behind the earlier names; too many: forget the oldest."""
    names.pop(node_id, None)
    while len(names) >= NAMES_MAX:
        del names[next(iter(names))]
    names[node_id] = name


def node_bits(node_ids: Iterable[int]) -> np.ndarray:
    """A bit a node id, as kernels look them up."""
    bits = np.zeros(1024, dtype=np.uint64)
    for each in node_ids:
        bits[each >> 6] |= np.uint64(1 << (each & 63))
    return bits.view(np.int64)


def _first_word(address: bytes) -> int:
    """Family, port and host of a ``sockaddr_in``, as agents compare it."""
    (word,) = struct.unpack_from("<q", address)
    return int(word)


def host_of(runtime: TransportRuntime, words: tuple[int, int]) -> int:
    """The host part of an address that a packet came from: IPv4, or a simulated host's number."""
    if runtime.config.kind == "memory":
        return words[1]
    return (words[0] >> 32) & 0xFFFFFFFF


class TransportRuntime:
    """Sockets and agents of one lane of a transport of one node."""

    def __init__(
        self,
        config: TransportConfig,
        index: int,
        node: tuple[int, str],
        incarnation: int,
        *,
        names: dict[int, str],
        bells: Bytes,
        counters: CountersFile,
        recorder: Bytes,
        inline: bool,
        on_events: Callable[[TransportRuntime, list[list[int]]], None],
        on_fault: OnFault,
        clock_ns: Callable[[], int],
        memory: Memory | None = None,
        seed: int | None = None,
        sealed: SealedTransport | None = None,
        lane: Lane | None = None,
    ) -> None:
        """``node``: our id and name. ``names``: where names of receivers' nodes go, by id.

        ``sealed``: keys, where packets are sealed. ``lane``: None: the first one.
        """
        self._on_fault, self.sealed, self._clock_ns = on_fault, sealed, clock_ns
        self.config, self.index, self.inline = config, index, inline
        self.node_id, self._node_name = node
        self.lane = Lane(0, 2 * index, lanes_at_work()) if lane is None else lane
        self.place = (self.node_id, self.lane.number)
        self.label = config.name if config.lanes == 1 else f"{config.name}/{self.lane.number}"
        """The name of its agents, and of their counters."""
        self.sender_bell = self.lane.bell
        self.bells, self._on_events, self.memory, self._names = bells, on_events, memory, names
        self.sockets: TransportSockets | None = None
        self._built = False
        """It has a state of its sender: a network in memory names targets before."""
        self._refused: frozenset[int] = frozenset()
        self._departed: frozenset[int] = frozenset()
        self._former: list[int] = []
        """Addresses that peers had before they moved, the latest first."""
        """Nodes that were peers: we send them nothing, so they hold nothing back."""
        self._scratch = np.zeros(SCRATCH_BYTES, dtype=np.uint8)
        self._rx_scratch = np.zeros(SCRATCH_BYTES, dtype=np.uint8)
        self._wake_fd = -1
        self._sender: AgentRunner | None = None
        self._receiver: AgentRunner | None = None
        name = f"{self.label} {config.kind}"
        self.sender_row = counters.allocate(counters_layout.ROW_SENDER, self.label, name)
        self.receiver_row = counters.allocate(counters_layout.ROW_RECEIVER, self.label, name)
        self._build(incarnation, counters, recorder, seed)

    def receive_buffer_bytes(self, channel: int) -> int:
        """Bytes that the kernel keeps on a channel while we do not run; 0: nothing is lost there.

        Linux grants twice the requested bytes, for its own book-keeping, and no more than its
        limit.
        """
        if self.sockets is None:
            return 0
        return self.sockets.receive[channel].getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2

    def address_text(self, words: tuple[int, int]) -> str:
        """An address that a packet came from, for people."""
        host = host_of(self, words)
        if self.config.kind == "memory":
            return str(host)
        port = int.from_bytes(struct.pack("<q", words[0])[2:4], "big")
        return f"{socket.inet_ntoa(struct.pack('<I', host))}:{port}"

    # --- construction ---------------------------------------------------------------------------

    def _open(self) -> tuple[int, list[int], list[list[bytes]], int]:
        c = self.config
        if c.kind == "memory":
            assert self.memory is not None, "a memory transport needs a Memory"
            self.memory.join(self)
            return -1, [-1] * CHANNELS, [], wire_io.KIND_MEMORY
        if c.kind == "udp-multicast":
            self.sockets = open_multicast(
                name=c.name,
                group=c.group,
                port=c.port,
                interface=c.interface,
                ttl=c.ttl_hops,
                buffer_bytes=c.socket_buffer_bytes,
                gro=c.gso,
                lane=self.lane.number,
                beside=self.lane.beside,
            )
        else:
            self.sockets = open_unicast(
                name=c.name,
                bind=c.bind or interface_address(c.interface, f"transport {c.name}: "),
                port=c.port,
                peers=c.peers,
                buffer_bytes=c.socket_buffer_bytes,
                gro=c.gso,
                lane=self.lane.number,
                lanes=c.lanes,
                beside=self.lane.beside,
            )
        self._filter(self.sockets)
        if self.seal_bytes:
            check_packet_fits(self.sockets, c.name, c.packet_bytes, self.seal_bytes)
        fds = [s.fileno() for s in self.sockets.receive]
        targets = [list(t) for t in self.sockets.targets]
        return self.sockets.send.fileno(), fds, targets, wire_io.KIND_UDP

    def _filter(self, sockets: TransportSockets) -> None:
        """Drop own packets in the kernel, and of a multicast transport packets of other lanes."""
        lanes = self.config.lanes if self.config.kind == "udp-multicast" else 1
        for one in sockets.receive:
            try:
                filter_packets(one, SOURCE_AT, self.node_id, self.lane.number, lanes)
            except OSError as problem:
                if lanes > 1:
                    raise ConfigError(no_filters(self.config.name, lanes, problem)) from problem
                return  # no filters here: the receiver drops its own packets itself

    def _build(
        self, incarnation: int, counters: CountersFile, recorder: Bytes, seed: int | None
    ) -> None:
        send_fd, receive_fds, targets, kind = self._open()
        c = self.config
        self._kind = kind
        source = address(self.memory.control[self.place]) if self.memory else 0
        inbox = address(self.memory.data[self.place]) if self.memory else 0
        sealed = self.sealed
        tx = wire_io.send_io(
            kind, send_fd, targets, c.packet_bytes, c.gso, source,
            None if sealed is None else sealed.sender.sealer,
        )  # fmt: skip
        back = wire_io.receive_io(kind, send_fd, source)
        shared: Any = {"counters": counters.values, "recorder": recorder, "bells": self.bells}
        self.tx_state = sender_state(
            tx,
            back,
            opener=None if sealed is None else sealed.sender.opener,
            at_work=self.lane.at_work,
            **shared,
        )
        self._built = True
        misc = self.tx_state.misc
        misc[publication_table.M_NODE], misc[publication_table.M_ROW] = (
            self.node_id,
            self.sender_row,
        )
        misc[publication_table.M_INCARNATION], misc[publication_table.M_SENDER_BELL] = (
            incarnation,
            self.sender_bell,
        )
        misc[publication_table.M_LANE], misc[publication_table.M_LANES] = (
            self.lane.number,
            c.lanes,
        )
        misc[publication_table.M_RATE_PACKETS] = c.rate_packets_per_s
        misc[publication_table.M_RATE_BYTES] = c.rate_bytes_per_s
        self._empty_inbox = wire_io.make_inbox(1, 64)
        inboxes = [address(self._empty_inbox), inbox, address(self._empty_inbox)]
        start = int.from_bytes(os.urandom(7), "little") if seed is None else seed * 7919 + 12345
        # On unicast NAK and STATUS leave by the bound port, so that the sender knows the peer.
        control_fd = send_fd if c.kind == "udp-multicast" else receive_fds[1]
        self.rx_state = receiver_state(
            [wire_io.receive_io(kind, receive_fds[i], inboxes[i]) for i in range(CHANNELS)],
            wire_io.send_io(
                kind,
                control_fd,
                [],
                c.packet_bytes,
                False,
                source,
                None if sealed is None else sealed.receiver.sealer,
            ),
            name=self._node_name,
            seed=start,
            opener=None if sealed is None else sealed.receiver.opener,
            **shared,
        )
        self.rx_state.misc[image_table.M_NODE], self.rx_state.misc[image_table.M_ROW] = (
            self.node_id,
            self.receiver_row,
        )
        self._take_handles()
        if sealed is not None:
            sealed.serve(self)
        if self.memory is not None:
            self.memory.retarget()

    def _take_handles(self) -> None:
        self._handles = (self.tx_state.words, self.rx_state.words, self._scratch)

    @property
    def sends_to_nobody(self) -> bool:
        """A unicast transport without a peer, for now."""
        return self.config.kind == "udp-unicast" and not int(
            self.tx_state.tx.io[wire_io.IO_TARGETS]
        )

    def bound_address(self) -> tuple[str, int]:
        """Host and port at which a unicast transport receives; 0.0.0.0 is every address."""
        assert self.sockets is not None
        host, _ = self.sockets.send.getsockname()
        return str(host), self.config.port

    @property
    def seal_bytes(self) -> int:
        """By so much a packet is longer since it is sealed."""
        return 0 if self.config.secure == "off" else SEAL_BYTES

    @property
    def wire_bytes(self) -> int:
        """The largest IP packet that is sent."""
        return self.config.packet_bytes + self.seal_bytes + UDP_HEADERS_BYTES

    def target_addresses(self) -> list[bytes]:
        """The address of each target, 16 bytes, in their order: of the transport's own port."""
        tx = self.tx_state.tx
        size = 16 * CHANNELS
        raw = tx.addresses[: int(tx.io[wire_io.IO_TARGETS]) * size].tobytes()
        first = 16 * CHANNEL_ORDINARY
        return [raw[at : at + 16] for at in range(first, len(raw), size)]

    def path_mtu(self, address: bytes) -> int:
        """Bytes of the largest IP packet that reaches an address in one piece; 0: not known."""
        return 0 if self.sockets is None else path_mtu(self.sockets.send, address)

    def heard_ns(self, node_id: int) -> int:
        """When a packet of a node came last, by the agents' clock; 0: never."""
        return int(self.rx_state.heard[node_id])

    def set_peers(
        self,
        peers: Sequence[PeerAddress],
        *,
        left: frozenset[int],
        moved: Mapping[int, tuple[str, int]],
    ) -> None:
        """Send to these nodes alone from now on; every address was checked.

        ``left``: nodes that were peers. Their NAK, STATUS and ACK are refused until they are peers
        again, and their receivers hold no publication back any more; nor do those of ``moved``
        nodes at the address of before, from which none joins until a peer is there again.
        """
        targets = [target_at(each.host, each.port) for each in peers]
        here = {_first_word(each) for target in targets for each in target}
        old = [_first_word(each) for node in moved for each in target_at(*moved[node])]
        former = dict.fromkeys([*old, *self._former])
        self._former = [each for each in former if each not in here][: publication_table.FORMER_MAX]
        self._departed = (self._departed | left) - {each.node_id for each in peers}

        def put() -> None:
            self.set_targets(targets)
            self._put_refused()
            self.tx_state.former[:] = 0
            self.tx_state.former[: len(self._former)] = self._former
            self._drop_receivers(left, moved)
            beacons = bool(targets) and self.lane.number == 0  # one lane speaks for the node
            self.tx_state.misc[publication_table.M_BEACON_NS] = int(beacons)

        self.on_sender(put)

    def refuse(self, node_ids: Sequence[int]) -> None:
        """Refuse NAK, STATUS and ACK of these nodes."""
        self._refused = frozenset(node_ids)
        self.on_sender(self._put_refused)

    def drop_receivers(self, node_ids: Sequence[int]) -> None:
        """Receivers of these nodes hold no publication back any more."""
        self.on_sender(lambda: self._drop_receivers(frozenset(node_ids), {}))

    def _put_refused(self) -> None:
        self.tx_state.refused[:] = node_bits(self._refused | self._departed)

    def _drop_receivers(self, left: frozenset[int], moved: Mapping[int, tuple[str, int]]) -> None:
        """Mark them, in the sender's thread; its kernel drops them at its next look."""
        state, at = self.tx_state, {node: target_at(*old) for node, old in moved.items()}
        if not (left or at):
            return
        for p in state.index[: int(state.misc[publication_table.M_COUNT])].tolist():
            rows = state.receivers[p]
            gone = (rows["id"] != 0) & np.isin(rows["node"], list(left))
            for node, addresses in at.items():
                old = np.isin(rows["address_a"], [_first_word(a) for a in addresses])
                gone |= (rows["id"] != 0) & (rows["node"] == node) & old
            if gone.any():
                rows["heard_ns"][gone] = publication_table.HEARD_NEVER_NS
                state.pubs["check_ns"][p] = 0

    def set_targets(self, targets: list[list[bytes]]) -> None:
        """Replace the addresses to send to. In the sender's thread, between two duty cycles."""
        if not self._built:
            return
        assert all(len(t) == CHANNELS and all(len(a) == 16 for a in t) for t in targets)
        wire_io.set_targets(self.tx_state.tx, targets, self.config.gso)

    def without_segments(self) -> list[bytes]:
        """Targets to which the kernel refused segments."""
        if not self.config.gso:
            return []
        segments = self.tx_state.tx.segments.tolist()
        return [a for a, n in zip(self.target_addresses(), segments, strict=False) if n == 1]

    def segment_again(self, addresses: Sequence[bytes]) -> None:
        """Send segments to these targets again, unless the kernel refuses them once more."""

        def put() -> None:
            now = self.target_addresses()
            wire_io.segment_again(self.tx_state.tx, [now.index(a) for a in addresses if a in now])

        self.post_sender(put)

    # --- running ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the agents' threads; nothing to do when they run inline."""
        if self.inline:
            return
        assert self.sockets is not None
        idle = IDLE_NAMES[self.config.idle]
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        fds = [s.fileno() for s in self.sockets.receive]
        fds += [self._wake_fd, self.sockets.send.fileno()]
        pollfds = np.frombuffer(
            bytearray(b"".join(struct.pack("<iHH", fd, 1, 0) for fd in fds)), dtype=np.uint8
        )
        n = len(fds)
        self._sender = AgentRunner(
            self.sender_name,
            lambda: int(run_sender(self._handles[0], idle, self._scratch)),
            self.tx_state.attention,
            lambda: self._hand_on(self.tx_state),
            lambda: ring_bell_line(self.bells, self.sender_bell),
            self._on_fault,
        )
        self._receiver = AgentRunner(
            self.receiver_name,
            lambda: int(
                run_receiver(self._handles[1], idle, self._rx_scratch, pollfds, n, self.sender_bell)
            ),
            self.rx_state.attention,
            lambda: self._hand_on(self.rx_state),
            self._wake_receiver,
            self._on_fault,
        )
        self._sender.start()
        self._receiver.start()

    @property
    def sender_name(self) -> str:
        """The name of the sender as an agent."""
        return f"sender-{self.label}"

    @property
    def receiver_name(self) -> str:
        """The name of the receiver as an agent."""
        return f"receiver-{self.label}"

    @property
    def sender_thread(self) -> int:
        """The mark of the sender's thread."""
        assert self._sender is not None and self._sender.thread is not None
        assert self._sender.thread.ident is not None
        return self._sender.thread.ident

    def _wake_receiver(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def _hand_on(self, state: Any) -> None:
        if state is self.rx_state and self._wake_fd >= 0:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
        n = int(state.attention[A_EVENTS])
        if n == 0:
            return
        rows = state.events[: min(n, EVENTS_MAX)].tolist()
        state.attention[A_EVENTS] = 0
        if state is self.tx_state:
            self._take_names(rows)
        if self.sealed is not None:
            rows = self._learn_sender(self.sealed, state is self.tx_state, rows)
        self._on_events(self, rows)

    def _learn_sender(
        self, sealed: SealedTransport, of_sender: bool, rows: list[list[int]]
    ) -> list[list[int]]:
        """Now, in the agent's thread: keys change between two duty cycles. The rows to report."""
        outcome = sealed.learn(of_sender, self._clock_ns())
        if outcome in (0, LEARNED):
            return [row for row in rows if row[0] != E_KEY]
        return [[*row[:5], outcome, *row[6:]] if row[0] == E_KEY else row for row in rows]

    def _take_names(self, rows: list[list[int]]) -> None:
        """Now, while the sender stands still: it uses their places again."""
        for kind, node_id, i, n, *_ in rows:
            if kind == E_RECEIVER_NAME:
                name = bytes(self.tx_state.names[i, :n]).decode(errors="replace")
                note_name(self._names, node_id, name)
        self.tx_state.misc[publication_table.M_NAMES] = 0

    def work(self, now_ns: int | None = None) -> int:
        """Run both agents once, inline; hand on their events."""
        done = int(inline_agents(self._handles, NOW if now_ns is None else now_ns))
        if done < 0:
            self.drain_events()
            return 1
        return done

    @property
    def inline_arguments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The arguments of `tidecast.agents.run.inline_agents`."""
        return self._handles

    def drain_events(self) -> None:
        """Hand on the reports of the inline agents."""
        if self.tx_state.attention[A_EVENTS] > 0:
            self._hand_on(self.tx_state)
        if self.rx_state.attention[A_EVENTS] > 0:
            self._hand_on(self.rx_state)

    def on_sender(self, command: Callable[[], T]) -> T:
        """Run a command between two duty cycles of the sender."""
        return command() if self._sender is None else self._sender.call(command)

    def on_receiver(self, command: Callable[[], T]) -> T:
        """Run a command between two duty cycles of the receiver."""
        return command() if self._receiver is None else self._receiver.call(command)

    def post_sender(self, command: Callable[[], object]) -> None:
        """Run a command between two duty cycles of the sender, soon."""
        if self._sender is None:
            command()
        else:
            self._sender.post(command)

    def post_receiver(self, command: Callable[[], object]) -> None:
        """Run a command between two duty cycles of the receiver, soon."""
        if self._receiver is None:
            command()
        else:
            self._receiver.post(command)

    def set_seals(self, sender: bool) -> None:
        """Seal the packets of the sender, or else the receiver, from now on. In its thread."""
        state = self.tx_state if sender else self.rx_state
        state.tx.io[wire_io.IO_SEALS] = 1

    def release(self) -> None:
        """Free the memory of stopped agents now: references to this object may live for long."""
        del self.tx_state, self.rx_state, self._handles, self._empty_inbox

    def stop(self) -> None:
        """Stop the agents and close the sockets. Idempotent."""
        for agent in (self._sender, self._receiver):
            if agent is not None:
                agent.stop()
        self._sender = self._receiver = None
        if self.memory is not None and self in self.memory.members:
            self.memory.leave(self)
        if self.sockets is not None:
            self.sockets.close()
            self.sockets = None
        if self._wake_fd >= 0:
            os.close(self._wake_fd)
            self._wake_fd = -1
