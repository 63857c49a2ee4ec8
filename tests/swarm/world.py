"""A world: three real nodes in virtual time, with clients, faults and a history of what they saw.

Crashes leave everything as ``kill -9`` would: rings and files as they are, nothing said to anybody.
The clients of the node then lose their engine and find the next one, as their keeper would.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
import zlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import msgspec

from tests.support.durable import attach_again, rows_in, rows_of
from tests.support.power import Disk, installed
from tests.swarm import history
from tests.swarm.script import LANES_MAX, NODES, Script, Settings, Step
from tidecast.api.start import Earliest, Tokens
from tidecast.client.blocking import Connection
from tidecast.client.core import connection as connections
from tidecast.config.topology import TopicConfig, Topology, shm_dir
from tidecast.errors import GapError, TidecastError
from tidecast.events import Gap, MessagesUnsent, RecordsGone
from tidecast.log.queue_log import QueueLog
from tidecast.log.repair.recovery import Segment
from tidecast.native.system.files import F_ERRNO, F_SYNC_ERRNO
from tidecast.testing import Network, SimulatedLink, SimulatedNode

DURABLE, DEAD, LIVE = "orders", "orders.dead", "ticks"
OWNER = NODES[0]
OWNER_ID = "1"
"""The first node of a network: the name of its data directory."""
HEALED_US = 40_000_000.0
QUIET_US = 2_000_000.0
"""The end: nobody receives anything for so long, repairs, time-outs and probes are over."""
AWAITED_NS = 8_000_000_000
"""The end waits so long for a delivery time; to a later one the clock is set."""
ENOSPC, EIO = 28, 5
STEP_US = 5_000.0
DAY_NS = 1_800_000_000_000_000_000
"""Time of day when a world begins: no world reads the host's clock."""


class Link(SimulatedLink):
    """A session that finds the next engine of its node."""

    def attach_to(self, node: SimulatedNode) -> None:
        """The engine that came after the one that crashed."""
        self.simulated = node
        attach_again(self, node.engine)


def put(publisher: Any, payload: bytes, key: bytes | None, due_ns: int | None = None) -> bool:
    """Publish one message in a packet of its own if there is room. Never waits."""
    message = publisher.prepare(payload, key, None, None, None, None, True, due_ns)
    return bool(publisher.attempt(message))


class Client:
    """A connection of a program at a node; ``name`` is the program's."""

    def __init__(self, world: World, name: str, node: str) -> None:
        self.world, self.name, self.node = world, name, node
        simulated = world.net.find(node)
        self.link = Link(simulated, name)
        simulated.engine.clients[self.link.client_id].outlives = True
        self.connection = Connection(self.link, name)
        world.net.connections.append(self.connection)
        world.clients.append(self)

    def lose(self) -> None:
        """The engine of its node crashed."""
        self.connection._keeper = threading.current_thread()
        self.connection._engine_lost("crashed")

    def find_again(self, node: SimulatedNode) -> None:
        """The node has an engine again."""
        self.link.attach_to(node)
        self.connection._reopen()

    def kill(self) -> None:
        """``kill -9`` of the program."""
        self.world.clients.remove(self)
        if self.link.simulated.alive:
            self.link.node.client_gone(self.link.client_id)


class Producer:
    """A named producer of the durable topic: what it has published, and how far that is durable."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.name = world, f"p{number}"
        self.sent: list[tuple[bytes, bytes, int]] = []
        """(key, payload, delivery time) by sequence, from 1 on."""
        self.done = 0
        """Handed to `publish` in this life."""
        self.acked = 0
        self.open(NODES[number % len(NODES)], first=1)

    def open(self, node: str, first: int) -> None:
        """Begin a session at a node, from a sequence on."""
        self.client = Client(self.world, self.name, node)
        self.publisher = self.client.connection.publisher(
            DURABLE, producer=self.name, first_seq=first
        )
        self.done = first - 1

    def message(self, chance: random.Random, size: int) -> tuple[bytes, bytes, int]:
        """The next message: its payload says who published it and its sequence."""
        seq = len(self.sent) + 1
        key = b"k%d" % chance.randrange(self.world.settings.keys)
        return key, b"%s:%d:" % (self.name.encode(), seq) + b"." * size, self._due_ns(seq)

    def _due_ns(self, seq: int) -> int:
        """The delivery time of a message, 0: none. Drawn apart from the rest of the world."""
        world = self.world
        chance = random.Random(f"{world.settings.seed} {self.name} {seq}")
        if chance.random() >= world.settings.scheduled_share:
            return 0
        return world.net.wall_ns() + chance.randrange(world.settings.ahead_us) * 1000

    def push(self, key: bytes, payload: bytes, due_ns: int) -> bool:
        """Publish one message if there is room; a new one goes into the history."""
        if not put(self.publisher, payload, key, due_ns or None):
            return False
        self.done += 1
        if self.done > len(self.sent):
            world = self.world
            self.sent.append((key, payload, due_ns))
            world.last_due_ns = max(world.last_due_ns, due_ns)
            note = history.Published(
                world.now, self.name, self.done, key, payload, due_ns, world.net.wall_ns()
            )
            world.history.append(note)
        return True

    def catch_up(self) -> None:
        """After a new session: what was sent and not acked, again."""
        while self.done < len(self.sent) and self.push(*self.sent[self.done]):
            pass

    def note_acks(self) -> None:
        """Write down how far everything is durable."""
        position = int(self.publisher.durable_position)
        if position > self.acked:
            self.acked = position
            self.world.history.append(history.Acked(self.world.now, self.name, position))


class Member:
    """A member of a durable subscription, and its handler."""

    def __init__(self, world: World, subscription: str, number: int) -> None:
        self.world, self.subscription = world, subscription
        self.name = f"{subscription}.m{number}"
        self.held: list[Any] = []
        self.client = Client(world, self.name, OWNER)
        settings = world.settings
        self.consumer = self.client.connection.consumer(
            DURABLE,
            subscription,
            ack_wait=settings.ack_wait_s,
            max_deliver=0,
            max_in_flight=settings.max_in_flight,
            dead_letter=DEAD,
        )

    def take(self, limit: int, hold: bool) -> int:
        """Handle what is there, up to ``limit``; how many deliveries there were."""
        batch = self.consumer.step(limit, True)
        if batch is None:
            return 0
        for message in batch.messages:
            self._handle(message, hold)
        self.consumer.collector.flush()
        return len(batch)

    def _handle(self, message: Any, hold: bool) -> None:
        world, token = self.world, message.token
        if message.held_back:
            message.give_back()
            self._settled(token, "back")
            return
        world.history.append(
            history.Delivered(
                world.now,
                self.subscription,
                self.name,
                token.queue,
                token.sequence,
                message.attempts,
                message.key,
                message.data,
                world.rounds[self.subscription],
                world.net.wall_ns(),
            )
        )
        seed = f"{world.settings.seed}{self.subscription}{token}{message.attempts}".encode()
        chance = random.Random(zlib.crc32(seed))
        draw = chance.random()
        if draw < world.settings.nak_share:
            message.nak(chance.choice([0.0, 0.0, 0.05, 0.3]))
            self._settled(token, "nak")
        elif draw < world.settings.nak_share + world.settings.term_share:
            message.term("poison")
            self._settled(token, "term")
        elif hold and chance.random() < 0.2:
            self.held.append(message.copy())
            self._settled(token, "held")
        else:
            message.ack()
            self._settled(token, "ack")

    def release(self) -> None:
        """Ack what the handler kept in hands."""
        for message in self.held:
            with contextlib.suppress(TidecastError):
                token = message.token
                message.ack()
                self._settled(token, "late")
        self.held.clear()
        self.consumer.collector.flush()

    def _settled(self, token: Any, how: str) -> None:
        world = self.world
        world.history.append(
            history.Settled(
                world.now,
                self.subscription,
                self.name,
                token.queue,
                token.sequence,
                how,
                world.rounds[self.subscription],
            )
        )

    def close(self) -> None:
        """Leave the subscription."""
        self.held.clear()
        self.consumer.close()
        self.client.connection.close()
        self.world.clients.remove(self.client)


class LivePublisher:
    """A publisher of the live topic: one message a packet."""

    def __init__(self, world: World, node: str) -> None:
        self.world, self.name, self.n = world, f"l{node}", 0
        self.client = Client(world, self.name, node)
        self.publisher = self.client.connection.publisher(LIVE)
        self.note_session()

    def note_session(self) -> None:
        """Sessions change with the engine: gaps are reported by session."""
        self.world.sessions[int(self.publisher.session)] = self.name

    def push(self, count: int) -> None:
        """Publish what finds room."""
        for _ in range(count):
            payload = b"%s:%d" % (self.name.encode(), self.n)
            if not put(self.publisher, payload, None):
                return
            self.world.history.append(history.LivePublished(self.world.now, self.name, self.n))
            self.n += 1

    def note_events(self) -> None:
        """Write down what was reported as unsent."""
        while (event := self.client.connection.take_event()) is not None:
            if isinstance(event, MessagesUnsent):
                self.world.history.append(history.LiveUnsent(self.name, event.messages))


class LiveSubscriber:
    """A subscription to the live topic."""

    def __init__(self, world: World, node: str) -> None:
        self.world, self.name = world, f"r{node}"
        self.client = Client(world, self.name, node)
        self.subscription = self.client.connection.subscribe(LIVE, on_gap="event")

    def take(self) -> int:
        """Read what is there; how many messages."""
        found = 0
        while (batch := self.subscription.step(512)) is not None:
            try:
                payloads = batch.payloads()
            except GapError as gap:
                self._lost(batch.session, *gap.lost_range)
                continue
            for payload in payloads:
                who, _, n = payload.decode().partition(":")
                note = history.LiveGot(self.world.now, self.name, who, int(n))
                self.world.history.append(note)
                found += 1
        while (event := self.client.connection.take_event()) is not None:
            if isinstance(event, Gap) and event.topic == LIVE:
                self._lost(event.session, event.first, event.end)
        return found

    def _lost(self, session: int, first: int, end: int) -> None:
        who = self.world.sessions.get(session, "")
        self.world.history.append(history.LiveGap(self.world.now, self.name, who, first, end))


class World:
    """See module. Kinds of steps are the methods that begin with ``do_``."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.chance = random.Random(settings.seed ^ 0x5EED)
        self.history: history.History = [history.Begun(int(settings.ack_wait_s * 1e9))]
        self.clients: list[Client] = []
        self.sessions: dict[int, str] = {}
        self.lives = 0
        self.reborn_at = 0
        self.last_due_ns = 0
        """The last delivery time that a producer drew."""
        self.frozen: set[str] = set()
        self.net = Network(
            settings.seed,
            drop=settings.drop,
            duplicate=settings.duplicate,
            reorder=settings.reorder,
            delay_us=settings.delay_us,
            step_us=50.0,
        )
        self.net.set_time_of_day(DAY_NS)
        self.letters_at = NODES[1] if settings.letters_away else OWNER
        self.directories: set[Any] = set()
        self.disk = Disk(self.net._directory / OWNER_ID, settings.seed)
        self._end = contextlib.ExitStack()
        self._others = set(connections._open)
        self._end.enter_context(mock.patch.object(QueueLog, "retain", self._recorded_retain()))
        if settings.power:
            self.disk.root.mkdir(parents=True, exist_ok=True)
            self._end.enter_context(installed(self.disk))
        keep: dict[str, Any] = {"fsync": settings.fsync}
        if settings.retention_bytes:
            keep["retention_bytes"] = settings.retention_bytes
        flow: Any = settings.flow
        topics = [
            TopicConfig(
                name=DURABLE,
                mode="durable",
                owner=OWNER,
                queues=settings.queues,
                fsync_interval_ms=5,
                segment_bytes=1 << 16,
                **keep,
            ),
            TopicConfig(name=DEAD, mode="durable", owner=self.letters_at, fsync="batch", queues=2),
            TopicConfig(name=LIVE, flow=flow, history_bytes=settings.live_history_bytes),
        ]
        for name, lanes in zip(NODES, settings.lanes, strict=True):
            node = self.net.node(name, topics=topics, transport={"lanes": lanes})
            self.directories.add(node.data_dir)
        self.rounds = {f"s{i}": 0 for i in range(settings.subscriptions)}
        self.members = [
            Member(self, name, n) for name in self.rounds for n in range(settings.members)
        ]
        self.watcher = Client(self, "watcher", OWNER)
        live = NODES[1:] if settings.power else NODES
        self.subscribers = [LiveSubscriber(self, node) for node in live]
        self.net.run(50_000)
        self.publishers = [LivePublisher(self, node) for node in live]
        self.producers = [Producer(self, n) for n in range(settings.producers)]
        self.net.run(200_000)
        for subscriber in self.subscribers:
            for publisher in self.publishers:
                self.history.append(history.LiveSince(subscriber.name, publisher.name, 0))

    @property
    def now(self) -> int:
        """Virtual time, ns."""
        return self.net.now_ns

    @property
    def owner(self) -> SimulatedNode:
        """The node that owns the durable topic."""
        return self.net.find(OWNER)

    def do(self, step: Step) -> None:
        """One step of a script, and what the clients learn by it."""
        method: Callable[[int, int, int], None] = getattr(self, f"do_{step.kind}")
        method(step.a, step.b, step.c)
        self._look()

    def _look(self) -> None:
        for producer in self.producers:
            producer.note_acks()
        for publisher in self.publishers:
            publisher.note_events()
        for client in self.clients:
            if client.name.startswith(("s", "watcher")):
                while (event := client.connection.take_event()) is not None:
                    if isinstance(event, RecordsGone) and event.topic == DURABLE:
                        self.history.append(
                            history.Gone(event.subscription, event.queue, event.first, event.end)
                        )

    # --- steps ------------------------------------------------------------------------------------

    def do_run(self, us: int, _b: int, _c: int) -> None:
        """Let time pass."""
        self.net.run(float(us))

    def do_publish(self, which: int, count: int, size: int) -> None:
        """A producer publishes what finds room."""
        producer = self.producers[which % len(self.producers)]
        producer.catch_up()
        for _ in range(count):
            if not producer.push(*producer.message(self.chance, size)):
                break
        self.net.run(STEP_US)

    def do_take(self, which: int, limit: int, hold: int) -> None:
        """A member handles what it was given."""
        member = self.members[which % len(self.members)]
        member.release()
        member.take(limit + 1, hold > 4)
        self._note_positions(member.subscription)
        self.net.run(STEP_US)

    def _note_positions(self, subscription: str) -> None:
        found = self.watcher.link.administer("show", {"pattern": DURABLE, "name": subscription})
        for row in found["cursors"]:
            self.history.append(
                history.Position(
                    self.now,
                    subscription,
                    row["queue"],
                    row["position"],
                    row["outstanding"],
                    self.rounds[subscription],
                    self.lives,
                )
            )

    def do_live_publish(self, which: int, count: int, _c: int) -> None:
        """A live publisher publishes what finds room."""
        self.publishers[which % len(self.publishers)].push(count)
        self.net.run(STEP_US)

    def do_live_take(self, which: int, _b: int, _c: int) -> None:
        """A live subscriber reads."""
        self.subscribers[which % len(self.subscribers)].take()
        self.net.run(STEP_US)

    def do_crash(self, which: int, us: int, _c: int) -> None:
        """``kill -9`` of an engine, and its next start after a while."""
        node = self.net.find(NODES[which])
        self._crash(node)
        self.net.run(float(us))
        self._start(node)

    def _crash(self, node: SimulatedNode) -> None:
        mine = [client for client in self.clients if client.node == node.name]
        self.history.append(history.Crashed(self.now, node.name))
        for client in mine:  # an engine process has pushed its events by then
            client.connection.pump()
        node.alive = False
        self.net.nodes.remove(node)
        self.net.switch.forget(node.id)
        engine = node.engine
        engine.context.set_started(False)
        for topic in engine.durable.topics.values():
            for log in topic.logs:  # what the kernel does for a process that is gone
                log.abandon()
        os.close(engine.context._alive)
        for runtime in engine.runtimes.values():
            self.net.switch.members.remove(runtime)
        for client in mine:
            client.lose()

    def do_power_lost(self, us: int, _b: int, _c: int) -> None:
        """The owner's machine loses its power: programs, shared memory, all that was not synced."""
        node = self.owner
        self._crash(node)
        died = [client for client in self.clients if client.node == OWNER]
        for client in died:
            self.clients.remove(client)
            self.net.connections.remove(client.connection)
            connections._open.discard(client.connection)
        shutil.rmtree(node.engine.directory, ignore_errors=True)
        self.disk.lose_power()
        self.net.run(float(us))
        self._start(node)
        self.watcher = Client(self, "watcher", OWNER)
        for at, member in enumerate(self.members):
            self.members[at] = self._again(member)
        for producer in self.producers:
            if producer.client in died:
                self._begin_again(producer, OWNER)

    def _start(self, node: SimulatedNode) -> None:
        self.net.now_ns += self.net.step_ns  # incarnations are times
        topology = self._with_other_lanes(node.topology)
        again = SimulatedNode(self.net, topology, node.data_dir, next(self.net._seeds))
        self.net.nodes.append(again)
        self.lives += 1
        for client in [c for c in self.clients if c.node == node.name]:
            client.find_again(again)
        for publisher in self.publishers:
            publisher.note_session()

    def _with_other_lanes(self, topology: Topology) -> Topology:
        if not self.settings.lanes_change:
            return topology
        [carrier] = topology.transports
        lanes = 1 + (carrier.lanes + self.lives) % LANES_MAX
        carrier = msgspec.structs.replace(carrier, lanes=lanes)
        return msgspec.structs.replace(topology, transports=[carrier])

    def do_freeze(self, which: int, us: int, _c: int) -> None:
        """A node does nothing for a while (SIGSTOP)."""
        node = self.net.find(NODES[which])
        self.net.nodes.remove(node)
        began_ns = self.now
        self.net.run(float(us))
        self.net.nodes.append(node)
        self.history.append(history.Frozen(began_ns, self.now, node.name))

    def do_cut(self, a: int, b: int, _c: int) -> None:
        """No packet passes between two nodes."""
        if a != b:
            self.net.partition(NODES[a], NODES[b])

    def do_heal(self, _a: int, _b: int, _c: int) -> None:
        """No cuts any more."""
        self.net.heal()

    def do_weather(self, drop: int, reorder: int, _c: int) -> None:
        """Other shares of lost and reordered packets."""
        self.net.switch.drop = (0.0, 0.0, 0.01, 0.1, 0.3)[drop]
        self.net.switch.reorder = (0.0, 0.0, 0.05, 0.2, 0.5)[reorder]

    def do_disk_fails(self, which: int, us: int, _c: int) -> None:
        """A queue's disk is full, or its syncs fail, for a while."""
        logs = self.owner.engine.durable.topics[DURABLE].logs
        faults = logs[which % len(logs)].state.disk
        at, value = ((F_ERRNO, ENOSPC), (F_SYNC_ERRNO, EIO))[which & 1]
        faults[at] = value
        self.net.run(float(us))
        faults[at] = 0

    def do_clock(self, seconds: int, _b: int, _c: int) -> None:
        """The wall clock is set, forwards or backwards."""
        self._set_clock(self.net.wall_ns() + seconds * 10**9)

    def _set_clock(self, wall_ns: int) -> None:
        self.history.append(history.ClockSet(self.now, self.net.wall_ns(), wall_ns))
        self.net.set_time_of_day(wall_ns)

    def do_grow(self, more: int, _b: int, _c: int) -> None:
        """More queues."""
        engine = self.owner.engine
        queues = engine.topic_by_name[DURABLE].queues + more
        with contextlib.suppress(TidecastError):
            engine.edit_topic(DURABLE, {"queues": min(queues, 8)})

    def do_seek(self, which: int, back: int, _c: int) -> None:
        """A subscription goes back: to the earliest record, or to a token of each queue."""
        name = f"s{which % len(self.rounds)}"
        member = next(each for each in self.members if each.subscription == name)
        found = self.watcher.link.administer("show", {"pattern": DURABLE, "name": name})
        tokens = {
            row["queue"]: max(row["position"] - back, self._earliest(row["queue"]))
            for row in found["cursors"]
        }
        start = Earliest() if which & 1 else Tokens(tokens)
        for each in self.members:
            if each.subscription == name:
                each.held.clear()
        self.rounds[name] += 1
        member.consumer.seek(start)

    def _earliest(self, queue: int) -> int:
        return int(self.owner.engine.durable.topics[DURABLE].logs[queue].earliest_token)

    def do_rejoin(self, which: int, other: int, _c: int) -> None:
        """A member leaves, or is killed, and comes back."""
        at = which % len(self.members)
        member = self.members[at]
        if other:
            member.held.clear()
            member.client.kill()
        else:
            member.close()
        self.net.run(STEP_US)
        self.members[at] = self._again(member)

    def _again(self, member: Member) -> Member:
        number = int(member.name.rpartition("m")[2]) + len(self.members)
        return Member(self, member.subscription, number)

    def do_reborn(self, which: int, at: int, _c: int) -> None:
        """A producer is killed and begins again, perhaps at another node, from its last ack on."""
        self.net.heal()
        if self.reborn_at == self.now:  # two births at one instant have no order between hosts
            self.net.run(STEP_US)
        self.reborn_at = self.now
        producer = self.producers[which % len(self.producers)]
        producer.note_acks()
        producer.client.kill()
        self._begin_again(producer, NODES[at])

    def _begin_again(self, producer: Producer, node: str) -> None:
        producer.open(node, producer.acked + 1)
        producer.catch_up()

    def do_pause(self, which: int, us: int, _c: int) -> None:
        """A subscription is paused for a while."""
        name = f"s{which % len(self.rounds)}"
        for word in (True, False):
            self.watcher.link.administer(
                "pause" if word else "resume", {"pattern": DURABLE, "name": name}
            )
            if word:
                self.net.run(float(us))

    # --- the end ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """All is well again: everything published must arrive, be handled, and be in the log."""
        self.net.heal()
        switch = self.net.switch
        switch.drop = switch.duplicate = switch.reorder = 0.0
        until_ns = self.now + int(HEALED_US * 1e3)
        step_us = STEP_US
        while self.now < until_ns and not self._durable():
            for producer in self.producers:
                producer.catch_up()
            step_us = self._settle_a_while(step_us)
        if not self._durable():
            self.history.append(
                history.Stuck("producers: not all that was published became durable")
            )
        if self.last_due_ns > self.net.wall_ns() + AWAITED_NS:
            self._set_clock(self.last_due_ns)
        until_ns = self.now + int(HEALED_US * 1e3)
        while self.now < until_ns and not self._consumed():
            step_us = self._settle_a_while(step_us)
        quiet_us = 0.0
        while quiet_us < QUIET_US:
            step_us = self._settle_a_while(step_us)
            quiet_us = 0.0 if step_us == STEP_US else quiet_us + step_us
        self._note_end()

    def _settle_a_while(self, step_us: float) -> float:
        """Everybody reads, then time passes: the longer, the longer nothing came."""
        done = self._take_all()
        self.net.run(step_us)
        self._look()
        return STEP_US if done else min(step_us * 1.5, 20 * STEP_US)

    def _durable(self) -> bool:
        return all(p.done == len(p.sent) and p.acked >= p.done for p in self.producers)

    def _take_all(self) -> int:
        for member in self.members:
            member.release()
        handled = sum(member.take(1000, False) for member in self.members)
        return handled + sum(subscriber.take() for subscriber in self.subscribers)

    def _shown(self, name: str) -> Any:
        return self.watcher.link.administer("show", {"pattern": DURABLE, "name": name})

    def _consumed(self) -> bool:
        ends = {log.queue: log.next_token for log in self._logs()}
        return all(
            row["position"] >= ends.get(row["queue"], 0)
            for name in self.rounds
            for row in self._shown(name)["cursors"]
        )

    def _recorded_retain(self) -> Callable[..., list[Segment]]:
        """`QueueLog.retain` that writes the records it deletes into the history."""
        retain = QueueLog.retain

        def recorded(log: QueueLog, **limits: Any) -> list[Segment]:
            before = rows_in(log) if log.topic == DURABLE else []
            gone = retain(log, **limits)
            self.history.extend(
                history.Deleted(*row) for row in before if row[1] < log.earliest_token
            )
            return gone

        return recorded

    def _logs(self) -> Any:
        return self.owner.engine.durable.topics[DURABLE].logs

    def _note_end(self) -> None:
        self.net.run(1_000_000)
        self._take_all()
        self._look()
        topic = self.owner.engine.durable.topics[DURABLE]
        for queue, token, key, payload, seq in rows_of(topic):
            self.history.append(history.Stored(queue, token, key, payload, seq))
        for name in self.rounds:
            for row in self._shown(name)["cursors"]:
                self.history.append(history.Disposed(name, row["queue"], row["position"]))
        letters = Client(self, "letters", self.letters_at).connection.consumer(DEAD, "reader")
        while True:
            self.net.run(STEP_US)
            batch = letters.step(1000, True)
            if batch is None:
                break
            for message in batch.messages:
                about = message.headers
                self.history.append(
                    history.DeadLetter(
                        str(about["dead-subscription"]),
                        int(about["dead-queue"]),
                        int(about["dead-token"]),
                    )
                )
            batch.ack()

    def close(self) -> None:
        """End everything and leave nothing in shared memory."""
        self.net.close()
        # Engines that crashed left connections to themselves, which nothing may use any more.
        connections._open.intersection_update(self._others)
        self._end.close()
        for directory in self.directories:
            shutil.rmtree(shm_dir(directory), ignore_errors=True)


def run(script: Script) -> history.History:
    """Run a script to its end; what happened."""
    world = World(script.settings)
    try:
        for step in script.steps:
            world.do(step)
        world.finish()
        return world.history
    finally:
        world.close()
