"""The node: one object that owns transports, publications, subscriptions, images and events.

Any thread may call it; one lock guards its state. Agents never take that lock: they hand events to
the conductor (a thread of its own, or the caller when the agents are inline), which may then give
them commands. Lock order: node lock, then an agent's command queue.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tidecast import events as ev
from tidecast.api.link import (
    PublicationGrant,
    PublicationOptions,
    SubscriptionGrant,
    SubscriptionOptions,
)
from tidecast.api.node import LeftBehind
from tidecast.buffers.counters import CountersFile
from tidecast.buffers.recorder import create_recorder, record_from_python
from tidecast.buffers.ring_file import add_consumer, remove_consumer
from tidecast.config.topology import (
    FaultSettings,
    TopicConfig,
    Topology,
    check_pattern,
    check_ring_bytes,
    check_topic_name,
    is_pattern,
    matches,
    shm_dir,
)
from tidecast.errors import (
    ConfigError,
    Conflict,
    ForkedProcess,
    NotFound,
)
from tidecast.layout import counters as cl
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.layout.packet import CHANNEL_LARGE, CHANNEL_NAMES
from tidecast.native.mapped import MappedFile
from tidecast.node.access.keys import KEYS_NAME, KeyRing
from tidecast.node.conductor import RAN_S_MAX, TICK_S, Conductor
from tidecast.node.consumers.service import DurableSubscriptions
from tidecast.node.durable.maintenance import adopt
from tidecast.node.durable.service import Durable
from tidecast.node.inspect import NodeViews
from tidecast.node.live import agent_tables, continuation, publication_close, sessions, topics
from tidecast.node.live.image_creation import RefusedImages, keep_place
from tidecast.node.live.indexed import Indexed
from tidecast.node.live.known_sessions import KnownSessions
from tidecast.node.live.late_join import join_existing_images
from tidecast.node.live.peers import EventRate
from tidecast.node.live.transports import Memory, TransportRuntime
from tidecast.node.live.wanted import WantedTopics
from tidecast.node.shm_directory import (
    adopt_recorder,
    clear_leftovers,
    dead_nodes,
    make_directory,
    remove_directory,
)
from tidecast.node.state import Client, Image, Peer, Publication, Subscription
from tidecast.protocol.dedup import Session
from tidecast.queues.leases.store import LeaseStore

CLIENTS_MAX = lay.DOORBELLS_MAX - lay.DOORBELL_FIRST_CLIENT
DRAIN_PATIENCE_S = 30.0
STOP_DRAIN_S = 1.0


class Node(NodeViews):
    """See module. ``inline``: no threads; agents and conductor run inside `work`."""

    def __init__(
        self,
        topology: Topology,
        data_dir: Path,
        inline: bool = False,
        *,
        memory: Memory | None = None,
        seed: int | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        lease_store: LeaseStore | None = None,
    ) -> None:
        self.clock_ns = clock_ns
        self.topology, self.data_dir, self.inline = topology, data_dir, inline
        self.id, self.name = topology.node.id, topology.node.name
        self.incarnation = time.time_ns()
        self.lock = threading.RLock()
        self.on_events: Callable[[int], None] | None = None
        self.on_source_gone: Callable[[Publication | Image], None] | None = None
        self.memory, self._seed, self._pid = memory, seed, os.getpid()
        self._random = np.random.default_rng(seed) if seed is not None else None
        base = shm_dir(data_dir)
        self.directory = base / f"{self.incarnation:x}-{os.getpid()}"
        self.bells_path = self.directory / "doorbells"
        self.counters_path = self.directory / "counters"
        self.recorder_path = data_dir / "recorder"
        self.runtimes: dict[str, TransportRuntime] = {}
        self.clients: dict[int, Client] = {}
        self.pubs: Indexed[Publication] = Indexed(
            topic=lambda p: p.topic.name, session=lambda p: p.session
        )
        self.subs: Indexed[Subscription] = Indexed(
            pattern=lambda s: "" if is_pattern(s.pattern) else s.pattern
        )
        self.ending_subs: dict[int, Subscription] = {}
        """Their topics are gone; their clients read what is left."""
        self.images_by_id: Indexed[Image] = Indexed(
            topic=lambda i: i.topic.name,
            session=lambda i: (i.runtime.config.name, i.session),
            node=lambda i: i.node_id,
        )
        self.wanted = WantedTopics(self)
        self._known: dict[str, KnownSessions] = {}
        self.peers: dict[int, Peer] = {}
        self.peer_events = EventRate()
        self.names: dict[int, str] = {}
        self.resume: dict[tuple[int, int], int] = {}
        self.topic_by_name: dict[str, TopicConfig] = {t.name: t for t in topology.topics}
        self.faults: dict[str, FaultSettings] = {}
        self.lease_store = lease_store
        self.ids = itertools.count(1)
        self.started = False
        self.keys = KeyRing(topology.keys, data_dir / KEYS_NAME)
        self.durable = Durable(self)
        self.consumers = DurableSubscriptions(self)
        self.refused = RefusedImages(self)
        self.conductor = Conductor(self)
        self._next_tick = self._ticked_s = 0.0
        self.ran_s = 0.0
        """For how long the conductor has run: its process may be stopped, or get no core."""
        self.left_behind = LeftBehind()

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Create shared memory, open sockets, start agents: all of it or nothing."""
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._alive = make_directory(self.directory, self.data_dir)
        adopt(self.durable, dead_nodes(self.directory.parent), self.directory)
        clear_leftovers(self.directory.parent)
        fresh = self.recorder_path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        try:
            self._bells = MappedFile.create(self.bells_path, lay.DOORBELLS_MAX * lay.DOORBELL_BYTES)
            self.counters = CountersFile.create(self.counters_path)
            self._recorder = create_recorder(fresh)
            self.node_row = self.counters.allocate(cl.ROW_NODE, self.name, str(self.id))
            for index, config in enumerate(self.topology.transports):
                if config.kind == "ipc":
                    continue
                self.runtimes[config.name] = TransportRuntime(
                    config,
                    index,
                    (self.id, self.name),
                    self.incarnation,
                    names=self.names,
                    bells=self._bells.array,
                    counters=self.counters,
                    recorder=self._recorder.array,
                    inline=self.inline,
                    on_events=self._from_agent,
                    on_fault=self.conductor.agent_failed,
                    memory=self.memory,
                    seed=self._seed,
                )
            for runtime in self.runtimes.values():
                sessions.set_quarantine(runtime, self.topology.node.quarantined)
                runtime.start()
            self.consumers.start()
            self.durable.start()
            adopt_recorder(fresh, self.recorder_path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            self._dispose()
            raise
        self.started = True
        self.note(rec.LOW, rec.Code.STARTED, 0, os.getpid())
        if not self.inline:
            self.conductor.start()

    def end(self) -> None:
        """Clients are about to lose this engine: those that outlive it keep their publications."""
        with self.lock:
            continuation.leave_open(self)

    def stop(self) -> None:
        """Close what is open, let the senders announce it, stop agents, remove shared memory."""
        if not self.started:
            return
        self.started = False
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
            self.left_behind = continuation.left_behind(self)
        self.consumers.stop()
        self.durable.stop()
        self.note(rec.LOW, rec.Code.STOPPED, 0)
        self._dispose()

    def _all_sent(self) -> bool:
        with self.lock:
            return all(p.left and continuation.is_sent(self, p) for p in self.pubs.values())

    def _dispose(self) -> None:
        self.consumers.stop()
        for runtime in self.runtimes.values():
            runtime.stop()
        self.runtimes.clear()
        if os.getpid() == self._pid:
            remove_directory(self.directory)
            os.close(self._alive)
            with contextlib.suppress(OSError):
                self.directory.parent.rmdir()

    def note(
        self, section: int, code: int, entity: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0
    ) -> None:
        """A flight-recorder record of the conductor."""
        record_from_python(
            self._recorder.array,
            rec.WRITER_CONDUCTOR,
            section,
            self.clock_ns(),
            int(code),
            entity,
            a,
            b,
            c,
            d,
        )

    def random_id(self, bits: int) -> int:
        """A random id above 0."""
        if self._random is not None:
            return int(self._random.integers(1, (1 << bits) - 1))
        return secrets.randbelow((1 << bits) - 1) + 1

    # --- conductor --------------------------------------------------------------------------------

    def _from_agent(self, runtime: TransportRuntime, rows: list[list[int]]) -> None:
        setups = sessions.take_setups(runtime, rows)
        self.post(lambda: sessions.handle(self, runtime, rows, setups))

    def post(self, job: Callable[[], None]) -> None:
        """Let the conductor do a job soon, with the lock held; inline: now."""
        self.conductor.post(job)

    def tick(self) -> None:
        """Look after what nobody announces: stuck readers, drained rings. At most each TICK_S."""
        now = self.clock_ns() / 1e9
        if now < self._next_tick:
            return
        self.ran_s += min(now - self._ticked_s, RAN_S_MAX)
        self._ticked_s, self._next_tick = now, now + TICK_S
        attempt = self.conductor.attempt
        for publication in list(self.pubs.values()):
            continuation.release(publication, now)
            attempt(publication_close.close_ending, self, publication, now)
            attempt(sessions.look_after_publication, self, publication, now)
        for image in list(self.images_by_id.values()):
            attempt(sessions.look_after_image, self, image, now)
        attempt(sessions.try_refused, self, now)
        attempt(self.durable.tick, now)

    def look_after(self, publication: Publication) -> None:
        """See whether a publication can go."""
        sessions.look_after_publication(self, publication, self.clock_ns() / 1e9)

    def work(self, now_ns: int | None = None) -> int:
        """Run agents and conductor once (inline nodes). None: now, by the node's clock."""
        if now_ns is None and self.clock_ns is not time.monotonic_ns:
            now_ns = self.clock_ns()
        done = 0
        for runtime in list(self.runtimes.values()):
            done += runtime.work(now_ns)
        done += self.durable.work(now_ns) + self.consumers.work(now_ns)
        if self.clock_ns() / 1e9 >= self._next_tick:
            with self.lock:
                self.tick()
        return done

    # --- clients ----------------------------------------------------------------------------------

    def attach(self, name: str, *, of_engine: bool = False, outlives: bool = False) -> int:
        """A new client; its id. ``of_engine``: the engine itself, see `segment.REC_ENGINE`.

        ``outlives``: it looks for the next engine when this one ends.
        """
        if os.getpid() != self._pid:
            raise ForkedProcess("this node belongs to the parent process: make one in the child")
        with self.lock:
            taken = {c.doorbell for c in self.clients.values()}
            lines = range(lay.DOORBELL_FIRST_CLIENT, lay.DOORBELLS_MAX)
            line = next((n for n in lines if n not in taken), None)
            if line is None:
                raise Conflict(f"an engine serves at most {CLIENTS_MAX} clients")
            client = Client(next(self.ids), name, line, of_engine, outlives)
            self.clients[client.id] = client
            for event in list(self.durable.standing.values()):
                self.tell(client.id, event)
            return client.id

    def _client(self, client_id: int) -> Client:
        try:
            return self.clients[client_id]
        except KeyError:
            raise NotFound(f"client {client_id} is not attached") from None

    def client_gone(self, client_id: int) -> None:
        """Close what a client left open. Idempotent."""
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

    def doorbell(self, client_id: int) -> int:
        """The client's doorbell line."""
        return self._client(client_id).doorbell

    # --- topics -----------------------------------------------------------------------------------

    def topics(self) -> list[TopicConfig]:
        """All topics, those made on first use included."""
        with self.lock:
            return list(self.topic_by_name.values())

    def topic(self, name: str) -> TopicConfig:
        """A topic by name; made on first use where the topology allows that."""
        found = self.topic_by_name.get(name)
        if found is not None:
            return found
        check_topic_name(name)
        if not self.topology.auto_create_topics:
            raise NotFound(f"no topic {name}: create it (tidecast topic create {name})")
        made = TopicConfig(name=name, transport=self.topology.transports[0].name)
        self.create_topic(made)
        return self.topic_by_name[name]

    def create_topic(self, topic: TopicConfig) -> None:
        """Add a topic."""
        topics.create_topic(self, topic)

    def edit_topic(self, name: str, changes: dict[str, Any]) -> None:
        """Change a topic; rates and linger hold at once, also for publications that run."""
        topics.edit_topic(self, name, changes)

    def delete_topic(self, name: str, *, keep_data: bool = False) -> None:
        """Remove a topic; its publications and subscriptions by that exact name end."""
        topics.delete_topic(self, name, keep_data=keep_data)

    # --- publications -----------------------------------------------------------------------------

    def open_publication(
        self, client_id: int, topic: str, options: PublicationOptions
    ) -> PublicationGrant:
        """Create a publication: a ring, and a place at the sender if the transport has one."""
        with self.lock:
            client = self._client(client_id)
            config = self.topic(topic)
            if options.channel not in CHANNEL_NAMES:
                raise ConfigError(
                    f"channel: {options.channel!r}: allowed {', '.join(CHANNEL_NAMES)}"
                )
            channel = CHANNEL_NAMES.index(options.channel)
            transport = self.topology.transport(config.transport)
            runtime = self.runtimes.get(transport.name)
            default = (
                config.large_history_bytes if channel == CHANNEL_LARGE else (config.history_bytes)
            )
            wanted = options.history_bytes or default
            check_ring_bytes("history_bytes", wanted, transport)
            slots = lay.slots_for(wanted, transport.packet_bytes)
            publication_id = next(self.ids)
            continued = continuation.accepted(self, client, config, options, slots)
            session = self._new_session() if continued is None else continued.session
            producer = (
                self.durable.begin(config, options, session) if config.mode == "durable" else None
            )
            first = 0 if continued is None else continued.head
            try:
                mapped = agent_tables.publication_ring(
                    self, publication_id, config, session, slots, channel, first
                )
            except BaseException:
                if producer is not None:
                    self.durable.abort(config, producer)
                raise
            publication = Publication(
                publication_id, client_id, config, session, mapped, runtime,
                began_ns=self.clock_ns(),
            )  # fmt: skip
            if continued is not None:
                publication.began_ns -= int(continued.age_s * 1e9)
                continuation.prepare(publication, continued)
            agent_tables.set_live(
                mapped.array,
                _or(options.rate_packets_per_s, config.rate_packets_per_s),
                _or(options.rate_bytes_per_s, config.rate_bytes_per_s),
                _or(options.linger_us, config.linger_us),
            )
            self.pubs[publication_id] = publication
            client.publications.add(publication_id)
            try:
                if producer is not None:
                    self.durable.attach(publication, producer, client.doorbell)
                if publication.begun:
                    self._begin(publication)
            except BaseException:
                self._undo_opening(publication, producer)
                raise
            self.note(rec.LOW, rec.Code.PUBLICATION_ADDED, session, config.wire_id, slots)
            topics.tell_unheard(self, publication, transport)
            return PublicationGrant(
                publication_id=publication_id,
                ring_path=str(mapped.path),
                topic=config.name,
                session=session,
                reliability=config.reliability,
                flow=config.flow,
                on_full=config.on_full,
                continued=continued is not None,
                **topics.session_of(producer, config.owner or self.name),
            )

    def _undo_opening(self, publication: Publication, producer: Session | None) -> None:
        """A publication could not be opened: nobody may read its ring, which is unmapped."""
        config = publication.topic
        if publication.source >= 0:
            topic = self.durable.topics[config.name]
            self.durable.remove_source(publication.source, topic, lay.ACK_ENDED)
        elif producer is not None:
            self.durable.abort(config, producer)
        self.forget_publication(publication)

    def _new_session(self) -> int:
        session = self.random_id(31)
        while self.pubs.of("session", session):
            session = self.random_id(31)
        return session

    def _begin(self, publication: Publication) -> None:
        """Let a publication be sent, and read by local subscriptions."""
        self.durable.remote.announce(publication, publication.about().channel)
        for subscription in sessions.readers_of(self, publication.topic.name):
            self._read_local(publication, subscription)

    def begin_publication(self, client_id: int, publication_id: int) -> None:
        """A continued publication's ring holds what the old one held. Raises NotFound, Conflict."""
        with self.lock:
            publication = self.pubs.get(publication_id)
            if publication is None or publication.client != client_id:
                raise NotFound(f"client {client_id} has no publication {publication_id}")
            if publication.begun:
                raise Conflict(f"publication {publication_id} has begun already")
            publication.begun = True
            continuation.hold(self, publication)
            self._begin(publication)

    def _read_local(self, publication: Publication, subscription: Subscription) -> None:
        """Let a local subscription read a local publication's own ring."""
        about = publication.about()
        kept = self.resume.pop((publication.session, subscription.id), None)
        if kept is not None:
            position, offset = continuation.resumed(about, kept), 0
        else:
            at_head = publication.began_ns <= subscription.created_ns
            position, offset = agent_tables.local_start(
                publication.mapped.array, about, subscription.options.start, at_head
            )
        entry = add_consumer(
            publication.mapped.array,
            position=position,
            offset=offset,
            client=subscription.client,
            doorbell=self.clients[subscription.client].doorbell,
            subscription=subscription.id,
            tethered=_tethered(subscription, publication.topic),
        )
        publication.readers[subscription.id] = entry
        if kept is not None:
            continuation.rejoined(publication)
        self.tell(
            subscription.client,
            ev.ImageAvailable(
                subscription_id=subscription.id,
                image_id=publication.id,
                ring_path=str(publication.mapped.path),
                consumer=entry,
                topic=publication.topic.name,
                node=self.name,
                session=publication.session,
            ),
        )

    def close_publication(self, client_id: int, publication_id: int) -> None:
        """Close the ring (if its writer did not) and let sender and readers drain it."""
        with self.lock:
            client = self.clients.get(client_id)
            publication = self.pubs.get(publication_id)
            if publication is None or publication.client != client_id:
                raise NotFound(f"client {client_id} has no publication {publication_id}")
            if client is not None:
                client.publications.discard(publication_id)
            publication.released = True
            publication_close.close_publication(self, publication)

    def forget_publication(self, publication: Publication) -> None:
        """Take a publication off its sender and unmap it."""
        self.source_gone(publication)
        sent = publication_close.remove_from_sender(self, publication)
        publication_close.tell_unsent(self, publication, sent)
        self.note(rec.LOW, rec.Code.PUBLICATION_REMOVED, publication.session, sent)
        self.pubs.pop(publication.id, None)
        client = self.clients.get(publication.client)
        if client is not None:
            client.publications.discard(publication.id)
        publication.mapped.unlink()
        publication.mapped.close()

    def tell_gone(
        self, subscription_id: int, image_id: int, topic: str, node: str, session: int, reason: str
    ) -> None:
        """Tell a subscription that a publication it reads has ended."""
        subscription = self.subs.get(subscription_id) or self.ending_subs.get(subscription_id)
        if subscription is not None:
            self.tell(
                subscription.client,
                ev.ImageGone(
                    subscription_id=subscription_id,
                    image_id=image_id,
                    topic=topic,
                    node=node,
                    session=session,
                    reason=reason,
                ),
            )

    # --- subscriptions ----------------------------------------------------------------------------

    def open_subscription(
        self, client_id: int, pattern: str, options: SubscriptionOptions
    ) -> SubscriptionGrant:
        """Subscribe. What exists already is connected before this returns."""
        with self.lock:
            client = self._client(client_id)
            check_pattern(pattern)
            if options.start not in ("latest", "earliest"):
                raise ConfigError(f"start: {options.start!r}: allowed latest, earliest")
            if not is_pattern(pattern):
                covered = [self.topology.transport(self.topic(pattern).transport)]
            else:  # topics to come may be on any
                covered = list(self.topology.transports)
            for transport in covered if options.receive_bytes else ():
                check_ring_bytes("receive_bytes", options.receive_bytes or 0, transport)
            created_ns = self.clock_ns() - int(options.away_s * 1e9)
            subscription = Subscription(next(self.ids), client_id, pattern, options, created_ns)
            self.subs[subscription.id] = subscription
            self.wanted.subscribed(subscription)
            client.subscriptions.add(subscription.id)
            try:
                for session, seq in options.resume.items():
                    keep_place(self, session, subscription.id, seq)
                for publication in self._publications(pattern):
                    if publication.begun and not publication.closing:
                        self._read_local(publication, subscription)
                join_existing_images(self, subscription)
            except BaseException:
                self.close_subscription(client_id, subscription.id)
                raise
            return SubscriptionGrant(
                subscription_id=subscription.id, subscriber_id=subscription.id, pattern=pattern
            )

    def close_subscription(self, client_id: int, subscription_id: int) -> None:
        """End a subscription."""
        with self.lock:
            subscription = self.subs.get(subscription_id) or self.ending_subs.get(subscription_id)
            if subscription is None or subscription.client != client_id:
                raise NotFound(f"client {client_id} has no subscription {subscription_id}")
            if self.subs.pop(subscription_id, None) is not None:
                self.wanted.unsubscribed(subscription)
            self.ending_subs.pop(subscription_id, None)
            if client_id in self.clients:
                self.clients[client_id].subscriptions.discard(subscription_id)
            for publication in self._publications(subscription.pattern):
                if not publication.left:  # who reads it keeps its entry
                    self._stop_reading(publication, subscription_id)
            for image in self._images(subscription.pattern):
                self._stop_reading(image, subscription_id)

    def _publications(self, pattern: str) -> list[Publication]:
        """Publications here of the topics that a pattern covers."""
        if not is_pattern(pattern):
            return self.pubs.of("topic", pattern)
        return [p for p in self.pubs.values() if matches(pattern, p.topic.name)]

    def _images(self, pattern: str) -> list[Image]:
        """Images of the topics that a pattern covers."""
        if not is_pattern(pattern):
            return self.images_by_id.of("topic", pattern)
        return [i for i in self.images_by_id.values() if matches(pattern, i.topic.name)]

    def known_sessions(self, runtime: TransportRuntime) -> KnownSessions:
        """What is known of the sessions of a transport."""
        name = runtime.config.name
        if name not in self._known:
            self._known[name] = KnownSessions(self, runtime)
        return self._known[name]

    def _stop_reading(self, source: Publication | Image, subscription_id: int) -> None:
        entry = source.readers.pop(subscription_id, None)
        if entry is None:
            return
        remove_consumer(source.mapped.array, entry)
        source.watch.pop(subscription_id, None)
        if isinstance(source, Image):
            sessions.look_after_image(self, source, self.clock_ns() / 1e9)
        else:
            sessions.look_after_publication(self, source, self.clock_ns() / 1e9)

    def release_image(self, client_id: int, subscription_id: int, image_id: int) -> None:
        """A client has drained and unmapped what was gone."""
        with self.lock:
            subscription = self.subs.get(subscription_id)
            if subscription is not None and subscription.client != client_id:
                raise NotFound(f"client {client_id} has no subscription {subscription_id}")
            source = self.images_by_id.get(image_id) or self.pubs.get(image_id)
            if source is not None:
                self._stop_reading(source, subscription_id)


def _or(chosen: int | None, default: int) -> int:
    return default if chosen is None else chosen


def _tethered(subscription: Subscription, topic: TopicConfig) -> bool:
    if subscription.options.tethered is not None:
        return subscription.options.tethered
    return topic.flow == "min" and topic.reliability != "unreliable"
