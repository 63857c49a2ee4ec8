"""The node: it composes its parts; clients and applications call it.

Any thread may call it; one lock guards its state. Agents never take that lock: they hand events to
the conductor (a thread of its own, or the caller when the agents are inline), which may then give
them commands. Lock order: node lock, then an agent's command queue.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tidecast import events
from tidecast.agents.states import lanes_at_work
from tidecast.api.link import (
    PublicationGrant,
    PublicationOptions,
    SubscriptionGrant,
    SubscriptionOptions,
)
from tidecast.api.node import LeftBehind, PeerAddress
from tidecast.buffers.counters import CountersFile
from tidecast.config.internal import is_internal
from tidecast.config.topology import (
    FaultSettings,
    NodeConfig,
    TopicConfig,
    Topology,
    TransportConfig,
)
from tidecast.errors import Conflict, ConnectionLost, NotFound, TidecastError
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.node import inspect
from tidecast.node.access.key_counts import KeyCounts
from tidecast.node.access.keys import KEYS_NAME, KeyRing
from tidecast.node.conductor import TICK_S
from tidecast.node.consumers.admin import ACTIONS
from tidecast.node.consumers.dead_letters import LetterClient
from tidecast.node.consumers.service import DurableSubscriptions
from tidecast.node.context import NodeContext
from tidecast.node.durable.service import Durable
from tidecast.node.faults import Faults, set_quarantine
from tidecast.node.kafka_endpoint import KafkaRegistration
from tidecast.node.live import agent_tables, continuation, sessions
from tidecast.node.live.images import Images
from tidecast.node.live.peers import Peers
from tidecast.node.live.publications import Publications
from tidecast.node.live.receiver_tables import SessionTables
from tidecast.node.live.sessions import Sessions
from tidecast.node.live.subscriptions import Subscriptions
from tidecast.node.live.targets import Paths, Targets
from tidecast.node.live.topics import Topics
from tidecast.node.live.transports import Lane, Memory, TransportRuntime
from tidecast.node.sealing.key_ring import WireKeyRing
from tidecast.node.shm_directory import clear_leftovers, dead_nodes
from tidecast.node.state import Client, Image, Publication
from tidecast.node.storing.service import Storages
from tidecast.queues.leases.store import LeaseStore
from tidecast.transport.sockets import share_ports

STOP_DRAIN_S = 1.0


class Node:
    """See module. ``inline``: no threads; agents and conductor run inside `work`.

    ``connect(node, of_engine)``: a client of this node, for dead letters. ``of_engine``: it may
    write the headers that the engine reserves.
    """

    def __init__(
        self,
        topology: Topology,
        data_dir: Path,
        inline: bool = False,
        *,
        connect: Callable[[Node, bool], LetterClient],
        memory: Memory | None = None,
        seed: int | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        incarnation: int | None = None,
        wall_ns: Callable[[], int] = time.time_ns,
        lease_store: LeaseStore | None = None,
        storages: Storages | None = None,
    ) -> None:
        ctx = self.context = NodeContext(
            topology, data_dir, inline=inline, seed=seed, clock_ns=clock_ns,
            incarnation=incarnation, wall_ns=wall_ns,
        )  # fmt: skip
        self.id, self.name, self.data_dir, self.inline = ctx.id, ctx.name, data_dir, inline
        self.incarnation, self.lock, self.conductor = ctx.incarnation, ctx.lock, ctx.conductor
        self.directory, self.bells_path = ctx.directory, ctx.bells_path
        self.counters_path, self.recorder_path = ctx.counters_path, ctx.recorder_path
        self.runtimes, self.clients, self.names = ctx.runtimes, ctx.clients, ctx.names
        self.pubs, self.subs, self.images_by_id = ctx.pubs, ctx.subs, ctx.images_by_id
        self.topic_by_name = ctx.topic_by_name
        self.keys = KeyRing(topology.keys, data_dir / KEYS_NAME)
        self.key_counts = KeyCounts(lambda: ctx.counters)
        self.kafka = KafkaRegistration()
        self.lease_store, self._memory = lease_store, memory
        self._faults = Faults(ctx)
        self.peers = Peers(ctx, self._faults.name_seen)
        self.wire_keys = WireKeyRing(ctx, self.peers)
        self._targets = Targets(ctx, self.peers.report)
        self._paths = Paths(ctx, self.peers.report)
        self._publications = Publications(ctx)
        self._images = Images(ctx, SessionTables(ctx.images_by_id))
        self.durable = Durable(ctx, self._publications, self._images, lease_store, storages)
        self._publications.serve(self.durable.publisher_side)
        self.sessions = Sessions(
            ctx,
            self._publications,
            self._images,
            self.peers,
            self.durable.owner_side,
            self.wire_keys,
        )
        self._subscriptions = Subscriptions(
            ctx, self._publications, self._images, self.durable.wanted, self.topic
        )
        self.consumers = DurableSubscriptions(
            ctx, self.durable.registry, self.durable.leases, partial(connect, self), ACTIONS
        )
        self._topics = Topics(
            ctx,
            self._publications,
            self.durable.wanted,
            self._subscriptions,
            self.durable,
            self.consumers.attached,
        )
        self.conductor.serve(self.tick, self._end_dependents)
        self._next_tick = 0.0
        self._client_lines = lay.DOORBELLS_MAX
        """Doorbell lines from here on belong to further lanes."""
        self.left_behind = LeftBehind()

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Create shared memory, open sockets, start agents: all of it or nothing."""
        ctx = self.context
        ctx.create_directory()
        self.durable.recovery.adopt(dead_nodes(ctx.directory.parent), ctx.directory)
        clear_leftovers(ctx.directory.parent)
        try:
            with ctx.create_files():
                self._start_transports()
                self.consumers.start()
                self.durable.start()
        except BaseException:
            self._dispose()
            raise
        ctx.set_started(True)
        ctx.note(rec.LOW, rec.Code.STARTED, 0, os.getpid())
        if not self.inline:
            self.conductor.start()

    def _start_transports(self) -> None:
        ctx = self.context
        for index, config in enumerate(ctx.topology.transports):
            if config.kind == "ipc":
                continue
            config = config.on(ctx.topology.node)  # noqa: PLW2901
            self._open_lanes(config, index)
        for runtime in self.runtimes.values():
            set_quarantine(runtime, ctx.topology.node.quarantined)
            runtime.start()

    def _open_lanes(self, config: TransportConfig, index: int) -> None:
        """All lanes of a transport. A further one takes a doorbell line from behind the clients."""
        ctx, at_work, beside = self.context, lanes_at_work(), 0
        sealed = self.wire_keys.open(config)
        for number in range(config.lanes):
            self._client_lines -= number > 0
            bell = 2 * index if number == 0 else self._client_lines
            runtime = TransportRuntime(
                config,
                index,
                (ctx.id, ctx.name),
                ctx.incarnation,
                names=ctx.names,
                bells=ctx.bells,
                counters=ctx.counters,
                recorder=ctx.recorder,
                inline=ctx.inline,
                on_events=self._from_agent,
                on_fault=self.conductor.agent_failed,
                memory=self._memory,
                seed=ctx.seed,
                sealed=sealed[number] if sealed else None,
                clock_ns=ctx.clock_ns,
                lane=Lane(number, bell, at_work, beside),
            )
            self.runtimes.add(runtime)
            if number == 0 and runtime.sockets is not None:
                beside = runtime.sockets.send.getsockname()[1]
        opened = [each.sockets for each in self.runtimes.of(config.name) if each.sockets]
        if config.kind == "udp-unicast" and len(opened) > 1:
            share_ports(config.name, opened)

    def end(self) -> None:
        """The engine ends: clients that outlive it keep their publications."""
        with self.lock:
            continuation.leave_open(self.context)

    def stop(self) -> None:
        """Close publications, let the senders announce it, stop agents, remove shared memory."""
        if not self.context.started:
            return
        self.context.set_started(False)
        with self.lock:
            for client_id in list(self.clients):
                self.client_gone(client_id)
        deadline = time.monotonic() + STOP_DRAIN_S
        pause = threading.Event()
        while not self._all_sent() and time.monotonic() < deadline:
            if self.inline:
                self.work()
            elif not self.conductor.alive:
                break
            else:
                pause.wait(0.005)
        self.conductor.stop()
        with self.lock:
            self.left_behind = self._publications.left_behind()
        self.consumers.stop()
        self.durable.stop()
        self.context.note(rec.LOW, rec.Code.STOPPED, 0)
        self._dispose()

    def kill(self) -> None:
        """Stop the agents and forget everything, without a goodbye (simulations)."""
        self.context.set_started(False)
        self._dispose()
        self.durable.abandon()

    def _all_sent(self) -> bool:
        with self.lock:
            return self._publications.all_sent()

    def _dispose(self) -> None:
        self.consumers.stop()
        for runtime in self.runtimes.values():
            runtime.stop()
        self.runtimes.clear()
        self.wire_keys.stop()
        self.context.remove_files()

    # --- conductor --------------------------------------------------------------------------------

    def _from_agent(self, runtime: TransportRuntime, rows: list[list[int]]) -> None:
        setups = sessions.take_setups(runtime, rows)
        self.post(lambda: self.sessions.handle(runtime, rows, setups))

    def post(self, job: Callable[[], None]) -> None:
        """Let the conductor do a job soon, with the lock held; inline: now."""
        self.conductor.post(job)

    def tick(self) -> None:
        """Check for stuck readers and drained rings, which cause no event. At most each TICK_S."""
        now = self.context.now_s()
        if now < self._next_tick:
            return
        self.context.note_tick(now)
        self._next_tick = now + TICK_S
        attempt = self.conductor.attempt
        for publication in list(self.pubs.values()):
            self._publications.tick(publication, now)
        for image in list(self.images_by_id.values()):
            attempt(self._images.check, image, now)
        attempt(self.sessions.try_refused, now)
        attempt(self.wire_keys.tick, now)
        attempt(self._targets.tick, now)
        attempt(self._paths.tick, now)
        attempt(self.durable.tick, now)
        attempt(self._topics.forget_internal)

    def _end_dependents(self, agent: str, problem: Exception) -> None:
        """An agent fails again and again: its publishers and subscribers are notified.

        Publishers raise ConnectionLost; to subscribers their publishers are gone.
        """
        for runtime in self.runtimes.values():
            if agent == runtime.sender_name:
                reason = (
                    f"the engine's {agent} fails again and again ({type(problem).__name__}: "
                    f"{problem}): restart the engine, and report its log"
                )
                for publication in [p for p in self.pubs.values() if p.runtime is runtime]:
                    event = events.PublicationEnded(
                        topic=publication.topic.name,
                        session=publication.session,
                        code=ConnectionLost.code,
                        reason=reason,
                    )
                    self.context.notify(publication.client, event)
            elif agent == runtime.receiver_name:
                for image in [i for i in self.images_by_id.values() if i.runtime is runtime]:
                    self._images.end(image, "failed")

    def work(self, now_ns: int | None = None) -> int:
        """Run agents and conductor once (inline nodes). None: now, by the node's clock."""
        if now_ns is None and self.context.clock_ns is not time.monotonic_ns:
            now_ns = self.context.clock_ns()
        done = 0
        for runtime in self.runtimes.values():
            done += runtime.work(now_ns)
        done += self.durable.work(now_ns) + self.consumers.work(now_ns)
        if self.context.now_s() >= self._next_tick:
            with self.lock:
                self.tick()
        return done

    # --- clients ----------------------------------------------------------------------------------

    def attach(self, name: str, *, of_engine: bool = False, outlives: bool = False) -> int:
        """A new client; its id. ``of_engine``: the engine itself, see `segment.REC_ENGINE`.

        ``outlives``: it looks for the next engine when this one ends.
        """
        self.context.check_process()
        with self.lock:
            taken = {c.doorbell for c in self.clients.values()}
            lines = range(lay.DOORBELL_FIRST_CLIENT, self._client_lines)
            line = next((n for n in lines if n not in taken), None)
            if line is None:
                raise Conflict(f"an engine serves at most {len(lines)} clients")
            client = Client(next(self.context.ids), name, line, of_engine, outlives)
            self.clients[client.id] = client
            for event in list(self.durable.registry.standing.values()):
                self.context.notify(client.id, event)
            return client.id

    def client_gone(self, client_id: int) -> None:
        """Close all that a client left open. Idempotent."""
        with self.lock:
            client = self.clients.get(client_id)
            if client is None:
                return
            self.consumers.client_gone(client_id)
            for publication_id in list(client.publications):
                if not self.pubs[publication_id].left:
                    self.close_publication(client_id, publication_id)
            for subscription_id in list(client.subscriptions):
                self.close_subscription(client_id, subscription_id)
            del self.clients[client_id]

    def _client(self, client_id: int) -> Client:
        try:
            return self.clients[client_id]
        except KeyError:
            raise NotFound(f"client {client_id} is not attached") from None

    def doorbell(self, client_id: int) -> int:
        """The client's doorbell line."""
        return self._client(client_id).doorbell

    def take_events(self, client_id: int) -> list[events.Event]:
        """Events since the call before."""
        client = self.clients.get(client_id)
        return [] if client is None else client.take_events()

    def notify_all(self, event: events.Event) -> None:
        """Queue an event for every client."""
        self.context.notify_all(event)

    def set_events_hook(self, hook: Callable[[int], None] | None) -> None:
        """Call ``hook(client id)``, from any thread, when `take_events` has something for it."""
        self.context.set_events_hook(hook)

    # --- topics -----------------------------------------------------------------------------------

    def topics(self) -> list[TopicConfig]:
        """All topics, those made on first use included, internal topics left out."""
        with self.lock:
            return [t for t in self.topic_by_name.values() if not is_internal(t.name)]

    def topic(self, name: str) -> TopicConfig:
        """A topic by name; made on first use where the topology allows that."""
        return self._topics.get(name)

    def create_topic(self, topic: TopicConfig) -> None:
        """Add a topic."""
        self._topics.create(topic)

    def create_topics(self, wanted: Sequence[TopicConfig]) -> dict[str, TidecastError]:
        """Add topics; the errors of topics that were not added, by name."""
        return self._topics.create_many(wanted)

    def edit_topic(self, name: str, changes: dict[str, Any]) -> None:
        """Change a topic; rates and linger hold at once, also for publications that run."""
        self._topics.edit(name, changes)

    def delete_topic(self, name: str, *, keep_data: bool = False) -> None:
        """Remove a topic; its publications and subscriptions by that exact name end."""
        self._topics.delete(name, keep_data=keep_data)

    def delete_topics(
        self, names: Sequence[str], *, keep_data: bool, keep_readers: bool = False
    ) -> dict[str, TidecastError]:
        """See `Topics.delete_many`."""
        return self._topics.delete_many(names, keep_data=keep_data, keep_readers=keep_readers)

    # --- publications and subscriptions -----------------------------------------------------------

    def open_publication(
        self, client_id: int, topic: str, options: PublicationOptions
    ) -> PublicationGrant:
        """Create a publication: a ring, and a place at the sender if the transport has one."""
        with self.lock:
            client = self._client(client_id)
            return self._publications.open(client, self.topic(topic), options)

    def begin_publication(self, client_id: int, publication_id: int) -> None:
        """A continued publication's ring has the old ring's messages. Raises NotFound, Conflict."""
        self._publications.begin_continued(client_id, publication_id)

    def keep_publication(self, client_id: int, publication_id: int) -> None:
        """The engine stops: a client keeps the unsent messages. Raises NotFound."""
        self._publications.keep(client_id, publication_id)

    def close_publication(self, client_id: int, publication_id: int) -> None:
        """Close the ring (if its writer did not) and let sender and readers drain it."""
        self._publications.close(client_id, publication_id)

    def open_subscription(
        self, client_id: int, pattern: str, options: SubscriptionOptions
    ) -> SubscriptionGrant:
        """Subscribe. Existing publications are connected before this returns."""
        with self.lock:
            return self._subscriptions.open(self._client(client_id), pattern, options)

    def close_subscription(self, client_id: int, subscription_id: int) -> None:
        """End a subscription."""
        self._subscriptions.close(client_id, subscription_id)

    def release_image(self, client_id: int, subscription_id: int, image_id: int) -> None:
        """A client has drained and unmapped an image that is gone."""
        self._subscriptions.release_image(client_id, subscription_id, image_id)

    # --- status -----------------------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        """The settings as they are now, without topics."""
        return self.context.topology

    def set_node_settings(self, settings: NodeConfig) -> None:
        """Replace the node's section of the topology."""
        self.context.set_node_settings(settings)

    @property
    def level(self) -> int:
        """The level of the cluster: the formats that this node writes."""
        return self.context.topology.level

    def set_level(self, level: int) -> None:
        """Write this level from now on. Raises ConfigError: this build does not read it."""
        with self.lock:
            before = self.context.topology.level
            self.context.set_level(level)
            if level == before:
                return
            for publication in list(self.context.pubs.values()):  # their SETUPs change
                if publication.runtime is not None and publication.slot >= 0:
                    agent_tables.update_setup(self.context, publication)

    @property
    def bells(self) -> np.ndarray:
        """The doorbell file's bytes."""
        return self.context.bells

    @property
    def counters(self) -> CountersFile:
        """The counters file."""
        return self.context.counters

    def note(
        self, section: int, code: int, entity: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0
    ) -> None:
        """A flight-recorder record of the conductor."""
        self.context.note(section, code, entity, a, b, c, d)

    def set_source_gone_hook(self, hook: Callable[[Publication | Image], None] | None) -> None:
        """Call ``hook`` before a publication or an image ends."""
        self.context.set_source_gone_hook(hook)

    def node_id_of(self, name: str) -> int:
        """Id of a node by name, of two nodes the later. Raises NoResponders."""
        return inspect.node_id_of(self.context, name)

    def set_faults(self, transport: str, faults: FaultSettings) -> None:
        """Inject faults into a transport that allows it."""
        self._faults.set(transport, faults)

    def get_faults(self) -> dict[str, FaultSettings]:
        """Fault injection by transport."""
        return self._faults.by_transport()

    def set_peers(self, peers: Mapping[str, Sequence[PeerAddress]]) -> dict[str, str]:
        """Send to these nodes, by unicast transport without a list of its own. Problems by name."""
        with self.lock:
            return self._targets.set(peers) if self.context.started else {}

    def discovered(self) -> list[dict[str, Any]]:
        """One mapping a peer that `set_peers` named: its address, and when it was heard."""
        with self.lock:
            return self._targets.rows()

    def stats(self) -> dict[str, Any]:
        """Counters of every entity that has one, by kind and name."""
        return agent_tables.stats(self.counters)

    def publications(self) -> list[dict[str, Any]]:
        """One mapping a publication."""
        return inspect.publications(self.context)

    def images(self) -> list[dict[str, Any]]:
        """One mapping an image."""
        return inspect.images(self.context)

    def receivers(self) -> list[dict[str, Any]]:
        """One mapping a receiver of a publication of this node."""
        return inspect.receivers(self.context)
