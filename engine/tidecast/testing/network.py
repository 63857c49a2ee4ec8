"""Whole nodes on a network in memory, in virtual or in real time. See `tidecast.testing`."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from weakref import WeakValueDictionary

from tidecast.agents.live import images as image_table
from tidecast.agents.live import publications as publication_table
from tidecast.agents.puller.state import P_DUE_NS
from tidecast.agents.warmup import needed, warm_up
from tidecast.api.link import PublicationGrant, PublicationOptions
from tidecast.api.logs import Logs, Report
from tidecast.client import aio
from tidecast.client.blocking import Connection
from tidecast.client.connecting import Connecting
from tidecast.config.topology import (
    NodeConfig,
    TopicConfig,
    Topology,
    TransportConfig,
    matches,
    topology_from,
)
from tidecast.embedded import EmbeddedLink, connect_to
from tidecast.errors import ConfigError, ConnectionLost, NotFound, TidecastError
from tidecast.layout import ring as lay
from tidecast.layout.counters import Counter
from tidecast.node.node import Node
from tidecast.node.sealing.wire_keys import FILE_NAME, WireKeys, save_wire_keys
from tidecast.node.state import Publication
from tidecast.testing.switch import Packet, Switch

START_NS = 1_000_000_000
"""Virtual time begins here: positive, so that no timer starts in the past."""
STEP_US = 10.0
IDLE_STEP_NS_MAX = 20_000_000
HELD_STEP_NS_MAX = 1_000_000
HELD_SHARE = 8
"""While packets are held back by a window, a rate or a missing receiver, and nothing else happens,
each step is an eighth of the time since something did; a millisecond at most."""
CYCLES_MAX = 256
LIMIT_US = 20_000_000.0
TRANSPORT = "memory"
MEMORY_BYTES_MIN = 1 << 30


class SimulatedLink(EmbeddedLink):
    """A session with a node of a `Network`: a caller that waits advances the network."""

    def __init__(self, simulated: SimulatedNode, name: str) -> None:
        self.simulated = simulated
        super().__init__(simulated.engine, name, owns_node=False)

    def open_publication(self, topic: str, options: PublicationOptions) -> PublicationGrant:
        """See `Link`."""
        self._alive()
        return super().open_publication(topic, options)

    @property
    def agents(self) -> None:
        """See `Link`: compiled loops have to wait in `work`, too."""
        return

    def work(self) -> int:
        """See `Link`: one step of the whole network, and of its clock."""
        return self.simulated.network.step_from_client()

    def now_s(self) -> float:
        """See `Link`."""
        return self.simulated.network.clock() / 1e9

    def wall_ns(self) -> int:
        """See `Link`."""
        return self.simulated.network.wall_ns()

    def close_publication(self, publication_id: int) -> None:
        """See `Link`."""
        self._alive()
        super().close_publication(publication_id)

    def close_subscription(self, subscription_id: int) -> None:
        """See `Link`."""
        self._alive()
        super().close_subscription(subscription_id)

    def release_image(self, subscription_id: int, image_id: int) -> None:
        """See `Link`."""
        self._alive()
        super().release_image(subscription_id, image_id)

    def open_logs(self, topic: str, report: Report) -> Logs:
        """See `Link`."""
        self._alive()
        return super().open_logs(topic, report)

    def close(self) -> None:
        """See `Link`; of a node that was killed there is nothing left to close."""
        if self.simulated.alive:
            super().close()
        self.simulated.link_closed(self)

    def _alive(self) -> None:
        if not self.simulated.alive:
            raise ConnectionLost(f"node {self.simulated.name} was killed")


class SimulatedNode:
    """A node on a `Network`. ``engine`` is the real node; `Network.node` makes it."""

    def __init__(
        self,
        network: Network,
        topology: Topology,
        data_dir: Path,
        seed: int,
        clock_ahead_s: float = 0.0,
    ) -> None:
        self.network, self.topology = network, topology
        self.clock_ahead_s = clock_ahead_s
        """The node's time of day is ahead of the network's by so much; below 0: behind."""
        self.data_dir = data_dir
        self.name, self.id = topology.node.name, topology.node.id
        self.alive = True
        self._links: list[SimulatedLink] = []
        self._first: SimulatedLink | None = None
        warm_up(names=needed(topology, inline=True))
        self.engine = Node(
            topology,
            data_dir,
            inline=True,
            memory=network.switch,
            seed=seed,
            clock_ns=network.clock,
            connect=connect_to,
            incarnation=None if network.real_time else network.clock(),
            wall_ns=self.wall_ns,
        )
        self.engine.start()

    def wall_ns(self) -> int:
        """The node's time of day, ns since 1970."""
        return self.network.wall_ns() + round(self.clock_ahead_s * 1e9)

    def set_clock_ahead(self, seconds: float) -> None:
        """Step this node's wall clock; its timers are not affected."""
        self.clock_ahead_s = seconds

    @property
    def link(self) -> SimulatedLink:
        """A session of the node, made when first asked for."""
        if self._first is None:
            self._first = self.new_link("test")
        return self._first

    def new_link(self, name: str) -> SimulatedLink:
        """One more session."""
        made = SimulatedLink(self, name)
        self._links.append(made)
        return made

    def link_closed(self, link: SimulatedLink) -> None:
        """A session ended."""
        if link in self._links:
            self._links.remove(link)
        if self._first is link:
            self._first = None
        self.network.link_closed(self)

    def connect(self, name: str = "test") -> Connection:
        """A blocking connection to this node, as `tidecast.sync.connect` returns it."""
        made = Connection(self.new_link(name), name)
        self.network.connections.append(made)
        return made

    def connect_async(self, name: str = "test") -> Connecting:
        """An asyncio connection to this node, as `tidecast.connect` returns it."""
        return Connecting(partial(self._connect_async, name))

    def _connect_async(self, name: str) -> aio.Connection:
        made = aio.Connection(self.new_link(name), name)
        self.network.connections.append(made)
        return made

    @property
    def url(self) -> str:
        """Connects to this node: for programs that connect by a URL."""
        return f"memory://{self.network.name}/{self.name}"

    def count(self, counter: Counter | str) -> int:
        """A counter summed over all rows of this node, also rows of closed entities.

        Raises NotFound: `tidecast.layout.counters.Counter` lists them.
        """
        if isinstance(counter, str) and counter.upper() not in Counter.__members__:
            close = ", ".join(difflib.get_close_matches(counter.upper(), Counter.__members__))
            raise NotFound(
                f"no counter {counter!r}" + (f": did you mean {close}?" if close else "")
            )
        column = Counter[counter.upper()] if isinstance(counter, str) else counter
        return int(self.engine.counters.values[:, column].sum())

    @property
    def links(self) -> int:
        """Sessions that are open."""
        return len(self._links)

    def __repr__(self) -> str:
        return f"SimulatedNode({self.name!r}, id={self.id}, alive={self.alive})"


class Network:
    """Nodes in one process, joined by packets in memory; a context manager.

    ``drop``, ``duplicate``, ``reorder``: probabilities a packet and receiver. ``delay_us``: one
    way, besides the step in which a packet is sent. All may be changed while it runs (they are
    attributes of ``switch``). ``real_time``: the clock is the machine's own, plus the time that
    `advance` added; `run` and `settle` are for virtual time only. ``name``: for URLs
    (`SimulatedNode.url`).

    In virtual time no real time passes: when a client waits and no work is left, the clock jumps to
    the next timer. Timeouts of its clients are virtual, too.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        drop: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        delay_us: float = 0.0,
        packet_bytes: int = 1400,
        step_us: float = STEP_US,
        inbox_packets: int = 8192,
        real_time: bool = False,
        trace: bool = False,
        name: str = "",
    ) -> None:
        shares: dict[str, Any] = {"drop": drop, "duplicate": duplicate, "reorder": reorder}
        for field, value in (shares | {"delay_us": delay_us}).items():
            most = 1.0 if field in shares else LIMIT_US
            if not isinstance(value, int | float) or not 0 <= value <= most:
                raise ConfigError(f"{field}: {value!r}: allowed 0..{most:g}")
        self.seed, self.packet_bytes, self.real_time = seed, packet_bytes, real_time
        self.step_ns = max(1, round(step_us * 1000))
        self.now_ns = START_NS
        self.switch = Switch(
            packet_bytes,
            inbox_packets,
            seed=seed,
            drop=drop,
            duplicate=duplicate,
            reorder=reorder,
            delay_ns=round(delay_us * 1000),
            trace=trace,
        )
        self.nodes: list[SimulatedNode] = []
        self.connections: list[Connection | aio.Connection] = []
        """Connections to its nodes, also to killed nodes; `close` closes the open ones."""
        self._ids = itertools.count(1)
        self._seeds = itertools.count(seed * 1009 + 1)
        self._lock = threading.RLock()
        self._driven, self._busy_ns, self._held = False, START_NS, 0
        self._ahead_ns = 0
        self._epoch_ns = time.time_ns() - self.clock()
        """The time of day when `clock` is 0."""
        self._ends_with_its_sessions = False
        self.name = name or f"network-{next(_numbers)}"
        with _registered:
            if self.name in _networks:
                raise ConfigError(f"name: {name!r}: this process has a network of that name")
            _networks[self.name] = self
        self._directory = Path(tempfile.mkdtemp(prefix="tidecast-net-", dir=_memory_directory()))

    # --- nodes ------------------------------------------------------------------------------------

    def node(
        self,
        name: str = "",
        topics: Iterable[str | TopicConfig] = (),
        *,
        durable: Iterable[str] = (),
        node: dict[str, Any] | None = None,
        transport: dict[str, Any] | None = None,
        wire_keys: WireKeys | None = None,
        level: int = 1,
        clock_ahead_s: float = 0.0,
        **topic_settings: Any,
    ) -> SimulatedNode:
        """Start a node with ``topics``, and ``durable`` topics, whose records lie in its directory.

        ``topic_settings`` hold for the topics that are given by name: fields of `TopicConfig`.

        ``node`` and ``transport``: further settings of `NodeConfig` and `TransportConfig`.
        ``wire_keys``: the node's `wire-keys.json`, for transports with ``secure``; this one is
        named ``memory``. ``level``: that of the node's cluster. ``clock_ahead_s``: by how much the
        node's time of day is ahead of the network's. Topics that are not named are made
        on first use, as everywhere. Raises ConfigError.
        """
        with self._lock:
            node_id = next(self._ids)
            name = name or f"node-{node_id}"
            if any(each.name == name and each.alive for each in self.nodes):
                raise ConfigError(f"node {name}: this network has one of that name")
            made = [
                t if isinstance(t, TopicConfig) else TopicConfig(name=t, **topic_settings)
                for t in topics
            ] + [TopicConfig(name=t, **topic_settings | {"mode": "durable"}) for t in durable]
            settings: dict[str, Any] = {"packet_bytes": self.packet_bytes, "allow_faults": True}
            settings |= transport or {}
            carrier = TransportConfig(name=TRANSPORT, kind="memory", **settings)
            identity = NodeConfig(**{"id": node_id, "name": name, **(node or {})})
            topology = topology_from(
                Topology(node=identity, transports=[carrier], topics=made, level=level)
            )
            data_dir = self._directory / str(node_id)
            if wire_keys is not None:
                data_dir.mkdir(exist_ok=True)
                save_wire_keys(wire_keys, data_dir / FILE_NAME)
            started = SimulatedNode(self, topology, data_dir, next(self._seeds), clock_ahead_s)
            self.nodes.append(started)
            return started

    def find(self, name: str | SimulatedNode) -> SimulatedNode:
        """A living node by name. Raises NotFound."""
        if isinstance(name, SimulatedNode):
            return name
        found = next((n for n in self.nodes if n.name == name and n.alive), None)
        if found is None:
            known = ", ".join(n.name for n in self.nodes if n.alive) or "none"
            raise NotFound(f"no node {name!r} on this network: there are {known}")
        return found

    def kill(self, name: str | SimulatedNode) -> None:
        """A node vanishes in the middle of whatever it did, without a goodbye."""
        node = self.find(name)
        with self._lock:
            node.alive = False
            self.nodes.remove(node)
            self.switch.forget(node.id)
            runtimes = list(node.engine.runtimes.values())
            node.engine.kill()
            for runtime in runtimes:
                runtime.release()

    def restart(self, name: str | SimulatedNode) -> SimulatedNode:
        """The same node again, in a new incarnation; kills it first if it still lives.

        Its connections are gone with it.
        """
        node = self.find(name)
        if node.alive:
            self.kill(node)
        with self._lock:
            if not self.real_time:
                self.now_ns += self.step_ns  # incarnations are times
            again = SimulatedNode(
                self, node.topology, node.data_dir, next(self._seeds), node.clock_ahead_s
            )
            self.nodes.append(again)
            return again

    # --- the network ------------------------------------------------------------------------------

    def partition(self, a: str | SimulatedNode, b: str | SimulatedNode) -> None:
        """Nothing passes between two nodes any more, either way."""
        self.switch.cut.add(frozenset((self.find(a).id, self.find(b).id)))

    def heal(self) -> None:
        """No partitions any more."""
        self.switch.cut.clear()

    def intercept(self, look: Callable[[Packet], bool | None]) -> None:
        """Show ``look`` every packet for every receiver; False from it drops the packet."""
        self.switch.looks.append(look)

    # --- time -------------------------------------------------------------------------------------

    def clock(self) -> int:
        """Now, ns."""
        return time.monotonic_ns() + self._ahead_ns if self.real_time else self.now_ns

    def wall_ns(self) -> int:
        """Now, ns since 1970: the host's time of day when it was made, advanced by `clock`."""
        return self._epoch_ns + self.clock()

    def set_time_of_day(self, ns: int) -> None:
        """Step the wall clock of all nodes, forwards or backwards; timers are not affected."""
        self._epoch_ns = ns - self.clock()

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass at once: timers of nodes and timeouts of clients become due.

        In steps of 20 ms at most, in which the nodes run: timers fire in their order. Your own
        timers (`asyncio.sleep`, `time.sleep`) are not affected.
        """
        if not self.real_time:
            self.run(seconds * 1e6)
            return
        left_ns = round(seconds * 1e9)
        while left_ns > 0:
            step_ns = min(left_ns, IDLE_STEP_NS_MAX)
            with self._lock:
                self._ahead_ns += step_ns
                self._step(step_ns)
            left_ns -= step_ns

    def run(
        self,
        duration_us: float | None = None,
        *,
        until: Callable[[], Any] | None = None,
        step_us: float | None = None,
    ) -> bool:
        """Let time pass: for ``duration_us``, or until a condition holds. True: it does.

        The condition is asked between steps. Nothing waits in it: use `poll` and `try_publish`.
        """
        assert not self.real_time, "time passes by itself here"
        limit_us = duration_us if duration_us is not None else LIMIT_US
        end_ns = self.now_ns + round(limit_us * 1000)
        step_ns = self.step_ns if step_us is None else max(1, round(step_us * 1000))
        self._driven = True
        try:
            while True:
                if until is not None and until():
                    return True
                if self.now_ns >= end_ns:
                    return False
                if self._step(step_ns) == 0:
                    self.now_ns = max(self.now_ns, min(self._next_timer_ns(), end_ns))
        finally:
            self._driven = False

    def settle(self, limit_us: float = LIMIT_US) -> bool:
        """Run until all that was published has arrived wherever it is wanted. False: it did not."""
        return self.run(limit_us, until=self.settled)

    def settled(self) -> bool:
        """Nothing is on its way, unsent, unknown or missing."""
        return self.switch.in_flight == 0 and all(
            self._has_arrived(node, publication)
            for node in self.nodes
            for publication in node.engine.pubs.values()
            if publication.slot >= 0
        )

    def _has_arrived(self, node: SimulatedNode, publication: Publication) -> bool:
        assert publication.runtime is not None
        if unsent(publication) > 0:
            return False
        sent = int(publication.runtime.tx_state.pubs[publication.slot]["sent"])
        for other in self.nodes:
            if other is node:
                continue
            engine = other.engine
            images = [i for i in engine.images_by_id.values() if i.session == publication.session]
            wanted = any(matches(s.pattern, publication.topic.name) for s in engine.subs.values())
            if wanted and not images and not publication.closing:
                return False
            for image in images:
                if image.slot < 0:
                    continue
                record = image.runtime.rx_state.images[image.slot]
                if int(record["contiguous"]) < sent:
                    return False
        return True

    def step_from_client(self) -> int:
        """A client waits: one step, unless `run` is driving. How much was done.

        In virtual time at least 1, so that no client sleeps: the clock moves on by a step, and to
        the next timer when nothing is to be done.
        """
        if self._driven:
            return 0
        with self._lock:
            done = self._step(self.step_ns)
            if self.real_time:
                return done
            if done == 0:
                self.now_ns = max(self.now_ns, self._next_timer_ns())
            return max(done, 1)

    def _step(self, step_ns: int) -> int:
        """Every node once, then the switch, then the clock. How much was done."""
        now = self.clock()
        done = 0
        for node in list(self.nodes):
            # A step stands for many duty cycles: all that has arrived is taken in.
            for _ in range(CYCLES_MAX):
                for runtime in node.engine.runtimes.values():
                    runtime.tx_state.misc[publication_table.M_POLL_SKIP] = 0
                done += node.engine.work(now)
                if not self.switch.waits_for(node.id):
                    break
        done += self.switch.move(now)
        self.now_ns += step_ns
        if done:
            self._busy_ns = self.now_ns
        return done

    def _next_timer_ns(self) -> int:
        """Nothing happens before this; now, when something may."""
        now = self.now_ns
        due = min(now + IDLE_STEP_NS_MAX, self.switch.next_due_ns())
        for node in self.nodes:
            due = min(due, int(node.engine._next_tick * 1e9) + 1)  # noqa: SLF001
            puller = node.engine.consumers.puller
            if puller is not None:
                due = min(due, max(int(puller.state.misc[P_DUE_NS]), now + self.step_ns))
            for runtime in node.engine.runtimes.values():
                due = min(due, _sender_due(runtime.tx_state), _receiver_due(runtime.rx_state))
                if due <= now:
                    return now
        held = sum(unsent(p) for node in self.nodes for p in node.engine.pubs.values())
        if held != self._held:  # a client has published
            self._held, self._busy_ns = held, now
        if held:
            due = min(due, now + min((now - self._busy_ns) // HELD_SHARE, HELD_STEP_NS_MAX))
        return int(due)

    # --- the end ----------------------------------------------------------------------------------

    def link_closed(self, node: SimulatedNode) -> None:
        """A session ended; the last one ends a network that `connect` made."""
        if self._ends_with_its_sessions and node.links == 0:
            with self._lock:
                if node in self.nodes:
                    self.kill(node)
                if not self.nodes:
                    self.close()

    def end_with_sessions(self) -> None:
        """From now on nodes end with their last session, and the network with its last node."""
        self._ends_with_its_sessions = True

    def close(self) -> None:
        """End all nodes and remove their files. Idempotent."""
        with _registered:
            if _networks.get(self.name) is self:
                del _networks[self.name]
        for node in list(self.nodes):
            self.kill(node)
        for connection in self.connections:  # else they would keep their nodes in memory
            with contextlib.suppress(TidecastError):
                connection.abandon()
        self.connections.clear()
        self.switch.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def unsent(publication: Publication) -> int:
    """Packets that were opened and not sent."""
    if publication.slot < 0 or publication.runtime is None:
        return 0
    (head,) = struct.unpack_from("<q", publication.mapped.array.data, lay.HEAD_AT)
    return int(head - publication.runtime.tx_state.pubs[publication.slot]["sent"])


def _sender_due(state: Any) -> int:
    index = state.index[: int(state.misc[publication_table.M_COUNT])]
    if index.size == 0:
        return image_table.NEVER
    return min(int(state.pubs[field][index].min()) for field in ("setup_ns", "beat_ns", "check_ns"))


def _receiver_due(state: Any) -> int:
    index = state.index[: int(state.misc[image_table.M_COUNT])]
    if index.size == 0:
        return image_table.NEVER
    due = int(state.images["status_ns"][index].min())
    asking = state.images["table_ns"][index]
    due = min(due, *(int(each) for each in asking if each), image_table.NEVER)
    missing = index[state.images["gaps"][index] > 0]
    return min(due, int(state.images["nak_ns"][missing].min())) if missing.size else due


# --- by name --------------------------------------------------------------------------------------

_networks: WeakValueDictionary[str, Network] = WeakValueDictionary()
_registered = threading.Lock()
_numbers = itertools.count(1)


def network_of(name: str) -> Network | None:
    """The network of this process with a name, if there is one."""
    with _registered:
        return _networks.get(name)


def _memory_directory() -> str | None:
    """Where files lie in memory; None: there is no room, so in the temporary directory."""
    directory = Path("/dev/shm")
    has_room = directory.is_dir() and shutil.disk_usage(directory).free >= MEMORY_BYTES_MIN
    return str(directory) if has_room else None
