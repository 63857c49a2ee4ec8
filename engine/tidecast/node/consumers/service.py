"""Durable subscriptions of a node: their consumers, queues and positions.

All runs under one lock; the puller's tables are changed by commands to its thread. Its own news go
into the inbox of a helper thread (inline: `work`), which saves positions every SAVE_INTERVAL_S.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tidecast import events
from tidecast.agents.guard import Guard
from tidecast.agents.puller import entries
from tidecast.agents.puller.observer import Dead, Observer
from tidecast.agents.puller.runtime import Puller
from tidecast.api.link import ConsumerGrant, ConsumerOptions
from tidecast.buffers.member_ring import MemberFile, wake_queue
from tidecast.config.suggestions import near
from tidecast.config.topology import TopicConfig, check_pattern, is_pattern, matches
from tidecast.errors import ConfigError, Conflict, NotFound, StorageError, Timeout
from tidecast.layout import member as lay
from tidecast.layout.ring import DOORBELL_PULLER
from tidecast.log.queue_log import QueueLog
from tidecast.native.mapped import MappedFile
from tidecast.native.predicates import Predicate
from tidecast.node.consumers import storage as places
from tidecast.node.consumers.adapters import Attached
from tidecast.node.consumers.checks import (
    check_may_create,
    check_options,
    check_same,
    note_unsaved,
    restored,
    saved_cursors,
    start_token,
)
from tidecast.node.consumers.dead_letters import Connect, DeadLetters
from tidecast.node.consumers.filters import Filters
from tidecast.node.consumers.letters.turns import Turns
from tidecast.node.consumers.metrics import SubscriptionRows
from tidecast.node.consumers.state import (
    PAUSED_GROWTH,
    PAUSED_QUEUE,
    PAUSED_SUBSCRIPTION,
    PAUSED_TOPIC,
    ConsumersState,
    CursorState,
    MemberState,
    QueueState,
    SubscriptionState,
    TopicState,
    shares_of,
)
from tidecast.node.context import NodeContext
from tidecast.node.durable.leases import Leases
from tidecast.node.durable.sources import SourceRegistry
from tidecast.node.durable.topic import DurableTopic
from tidecast.queues.attached import AttachedQueue
from tidecast.queues.cache.blocks import BLOCK_BYTES
from tidecast.queues.mapper import QueueMap
from tidecast.queues.sources import LogSource
from tidecast.queues.subscription_store import SavedSubscription

SAVE_INTERVAL_S = 0.1
NAME_BYTES_MAX = 128
APPEND_ROUNDS_MAX = 8
CACHE_BYTES_MAX = 256 << 20
"""Limit of all caches of a node together."""
_ACKS_BYTES = 1 << 18


class DurableSubscriptions(Observer):
    """See module. `start` after the node's files exist, `topic_opened` for every durable topic."""

    def __init__(
        self,
        ctx: NodeContext,
        durable: SourceRegistry,
        leases: Leases,
        connect: Connect,
        actions: Mapping[str, Callable[..., Any]],
    ) -> None:
        """``actions``: of `perform`; each takes this object first."""
        state = self.state = ConsumersState(ctx, durable, leases)
        self.ctx, self.durable, self.lock, self._actions = ctx, durable, state.lock, actions
        self.topics, self.subscriptions = state.topics, state.subscriptions
        self.consumers: dict[int, tuple[SubscriptionState, MemberState]] = {}
        self.filters = Filters(state)
        self._rows: dict[int, QueueState] = {}
        self._by_cursor: dict[int, tuple[SubscriptionState, CursorState]] = {}
        self._gated_cursors: set[int] = set()
        self._ids = itertools.count(1)
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._helper: threading.Thread | None = None
        self._next_save_ns = 0
        self._unsaved: dict[tuple[str, str], str] = {}
        """Subscriptions whose last save failed, and the problem that was reported."""
        self.letters, self.counters = DeadLetters(state, self, connect), SubscriptionRows(state)
        self.redrives = Turns()
        self.attached = Attached(state, self)

    @property
    def puller(self) -> Puller | None:
        """The puller; None before the first durable topic is there."""
        return self.state.puller

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Load the subscriptions. The puller starts with the first durable topic."""
        durable = self.durable
        durable.on_queues.append(self._queues_opened)
        durable.on_closed.append(self.topic_closed)
        durable.on_deleted.append(self._topic_deleted)
        durable.positions.append(self.position)
        found, bad = self.state.store.load()
        self.state.deleted.look()
        for saved in found:
            if self.state.deleted.is_over(saved):
                places.remove(self.state, saved.pattern, saved.name)
            else:
                self._admit(saved)
        places.note_damaged(self.state, bad)

    def _running(self) -> Puller:
        """The puller; it is created with the first durable topic."""
        if self.puller is not None:
            return self.puller
        ctx = self.ctx
        self._wakes = MappedFile.create(ctx.directory / "wakes", lay.WAKES_BYTES)
        puller = Puller(
            wakes=self._wakes.array,
            bells=ctx.bells,
            bell=DOORBELL_PULLER,
            blocks_max=max(64, CACHE_BYTES_MAX // BLOCK_BYTES),
            observer=self,
            clock_ns=ctx.clock_ns,
            wall_ns=ctx.wall_ns,
            on_fault=ctx.conductor.agent_failed,
        )
        self.state.set_puller(puller)
        if not ctx.inline:
            puller.start()
            self._helper = threading.Thread(target=self._help, name="subscriptions", daemon=True)
            self._helper.start()
            self.letters.start()
        return puller

    def stop(self) -> None:
        """Save all positions, stop the puller. Idempotent."""
        if self._helper is not None:
            self._inbox.put(None)
            self._helper.join(5.0)
            self._helper = None
        self.letters.close()
        self.attached.end()
        if self.puller is not None:
            self.save_all()
            self.puller.stop()
            for here in self._rows.values():
                here.source.close()
            self._rows.clear()
        self.attached.close()
        self.state.set_puller(None)

    def work(self, now_ns: int | None = None) -> int:
        """One cycle of the puller, and its events (inline nodes)."""
        if self.puller is None:
            return 0
        done = self.puller.work(now_ns)
        self._deal()
        return done

    def _help(self) -> None:
        guard = Guard("subscriptions", self.ctx.conductor.agent_failed)
        while True:
            try:
                item = self._inbox.get(timeout=SAVE_INTERVAL_S)
            except queue.Empty:
                item = self._keep
            if item is None:
                return
            guard.round(item, self._keep)

    def _deal(self) -> None:
        while not self._inbox.empty():
            if (item := self._inbox.get()) is not None:
                item()
        self.letters.work()
        self._keep()

    def _keep(self) -> None:
        self._save_if_due()

    def save_soon(self) -> None:
        """Save the positions now, and not when they are due."""
        self._next_save_ns = 0
        self._inbox.put(self._keep)

    # --- topics -----------------------------------------------------------------------------------

    def _queues_opened(self, topic: DurableTopic) -> None:
        """The node's archiver has opened a topic, or made more queues: it wakes the puller now."""
        self.topic_opened(topic.config, topic.logs, topic.map, topic)
        archiver = self.durable.runtime
        rows = [one.row for one in self.topics[topic.config.name].queues]
        numbers = self.durable.tables.queue_numbers(topic)

        def connect() -> None:
            archiver.state.replace("wakes", self._wakes.array)
            for number, row in zip(numbers, rows, strict=True):
                archiver.state.queues[number]["puller"] = row + 1

        archiver.on_archiver(connect)
        for row in rows:
            wake_queue(self._wakes.array, self.ctx.bells, row)

    def topic_opened(
        self,
        config: TopicConfig,
        logs: Sequence[QueueLog | AttachedQueue],
        queue_map: QueueMap,
        topic: DurableTopic | None = None,
    ) -> None:
        """A durable topic is open, or has grown: matching subscriptions get cursors."""
        with self.lock:
            puller = self._running()
            here = self.topics.get(config.name)
            fresh = here is None
            if here is None:
                if topic is not None:
                    here = TopicState(
                        config,
                        queue_map,
                        store=places.store_of(topic),
                        owned=lambda: topic.owned,
                        directory=topic.directory,
                    )
                else:
                    directory = self.attached.directory(config.name)
                    here = TopicState(config, queue_map, directory=directory)
                self.topics[config.name] = here
                arrived, lost = places.taken(self.state, here)
                for subscription in lost:
                    self.drop(subscription, "its file is damaged")
                for saved in arrived:
                    self._admit(saved)
            here.configure(config, queue_map)
            blocks = max(2, config.cache_bytes // BLOCK_BYTES // max(1, len(logs)))
            for log in logs[len(here.queues) :]:
                source = log.source() if isinstance(log, AttachedQueue) else LogSource(log)
                row = puller.call(puller.add_queue, source, blocks)
                one = QueueState(config.name, log.queue, log, source, row)
                here.queues.append(one)
                self._rows[row] = one
            if fresh:
                places.restore_paused(self.state, here)
            for subscription in self.subscriptions.values():
                if matches(subscription.saved.pattern, config.name):
                    self._add_cursors(subscription, here, None)
                    self._share(subscription)
                    places.report_pause_of(self.state, subscription)

    def topic_closed(self, name: str) -> None:
        """A durable topic is closed, or deleted: remove its cursors and queues here."""
        with self.lock:
            if name not in self.topics or self.puller is None:
                return
            puller = self.puller
            self.save_all()
            here = self.topics.pop(name)
            for subscription in self.subscriptions.values():
                for key in [key for key in subscription.cursors if key[0] == name]:
                    self._remove_cursor(subscription, key)
            for one in here.queues:
                puller.call(puller.remove_queue, one.row)
                self._rows.pop(one.row, None)
                one.source.close()
            if here.store is not None:
                places.gone(self.state, name)

    def _topic_deleted(self, name: str) -> None:
        """Forget the marks of letters in a deleted topic: new letters get the same places."""
        with self.lock:
            for subscription in self.subscriptions.values():
                saved = subscription.saved
                if saved.dead_letter == name:
                    saved.forget_letters()
                    saved.set_dead_open(0)
                    self.save_or_say(subscription)

    def appended(self, topic: str, queue_index: int) -> None:
        """A queue has new records (from Python; the archiver wakes by itself)."""
        here = self.topics.get(topic)
        if here is not None:
            wake_queue(self._wakes.array, self.ctx.bells, here.queues[queue_index].row)

    def await_appends(self) -> None:
        """Let the archiver append messages published here until now: `ROUNDS_MAX` cycles at most.

        Without the lock. A queue that does not keep up, or whose disk refuses, is `coming`.
        """
        durable = self.durable
        with contextlib.suppress(Timeout):  # the archiver is stuck in a write: that is `coming`
            for _ in range(APPEND_ROUNDS_MAX):
                if not durable.look_for_unread():
                    return

    def arriving(self, subscription: SubscriptionState) -> int:
        """Messages that publishers on other nodes hold for a subscription's topics."""
        return self.state.arriving(subscription)

    def coming(self, topic: str) -> bool:
        """Has something been published to a topic here that is not in its log?"""
        return topic in self.durable.unread_topics

    def position(self, topic: str, queue_index: int) -> int | None:
        """The oldest token of a queue that is not acknowledged; None: no subscription.

        Retention keeps it. A subscription whose topic is not open counts by its saved position.
        """
        if places.holds_all(self.state, topic):
            return 0
        with self.lock:
            found = [
                self.position_of(cursor)[0]
                for subscription in self.subscriptions.values()
                if (cursor := subscription.cursors.get((topic, queue_index))) is not None
            ]
        return min(found, default=None)

    # --- subscriptions ----------------------------------------------------------------------------

    def open_consumer(
        self, client_id: int, pattern: str, name: str, options: ConsumerOptions
    ) -> ConsumerGrant:
        """See `Link.open_consumer`."""
        check_options(options)
        if options.start == "latest":
            self.await_appends()
        with self.lock:
            self._end_deleted()
            places.check_sound(self.state, pattern, name)
            self.filters.check(options.filter_digest)
            subscription = self.subscriptions.get((pattern, name))
            if subscription is None:
                subscription = places.stand_by(self.state, pattern, name, options)
            if subscription is None:
                check_may_create(pattern, name, options)
                subscription = self.create(pattern, name, options)
            else:
                check_same(subscription.saved, options)
                self.filters.arm(subscription)
            member = self._join(subscription, client_id, options)
            self._report_gone(subscription, client_id)
            return self._grant(subscription, member)

    def _report_gone(self, subscription: SubscriptionState, client_id: int) -> None:
        """Report to a new member the records that were deleted at its position."""
        for event in list(subscription.gone):
            cursor = subscription.cursors.get((event.topic, event.queue))
            if cursor is None or self.position_of(cursor)[0] > event.end:
                subscription.gone.remove(event)  # more was acked since: others know of it
            else:
                self.ctx.notify(client_id, event)

    def offer(self, predicate: Predicate) -> None:
        """A compiled filter of this process, for consumers that name it."""
        with self.lock:
            self.filters.offer(predicate)

    def create(self, pattern: str, name: str, options: ConsumerOptions) -> SubscriptionState:
        """A new subscription. Its position is fixed and saved when this returns."""
        check_pattern(pattern)
        if not 1 <= len(name.encode()) <= NAME_BYTES_MAX or "/" in name:
            raise ConfigError(f"name: {name!r}: 1 to {NAME_BYTES_MAX} bytes, without /")
        if pattern not in self.topics and not is_pattern(pattern):
            places.check_readable(self.state, pattern, options.start)
        with self.lock:
            self._end_deleted()
            places.check_sound(self.state, pattern, name)
            if (pattern, name) in self.subscriptions:
                raise Conflict(f"subscription {name} of {pattern} exists already")
            places.check_new(self.state, pattern, options)
            saved = places.new_subscription(self.state, pattern, name, options)
            subscription = self._admit(saved, options)
            try:
                self.save_now(subscription)
            except StorageError:
                self._forget(subscription)
                raise
            return subscription

    def _admit(
        self, saved: SavedSubscription, options: ConsumerOptions | None = None
    ) -> SubscriptionState:
        subscription = self.state.new(saved)
        for here in self.topics.values():
            if matches(saved.pattern, here.config.name):
                self._add_cursors(subscription, here, options)
        return subscription

    def delete(self, pattern: str, name: str) -> None:
        """End a subscription for good; its members are notified that it ended.

        Also at the engines that share our queues, and for queues that lie with them. Raises
        NotFound, StorageError.
        """
        with self.lock:
            if (pattern, name) in self.state.unsound:
                places.note_deleted(self.state, pattern, name, 0)
                if places.forget_damaged(self.state, pattern, name):
                    return
            subscription = self.get(pattern, name)
            places.note_deleted(self.state, pattern, name, subscription.saved.generation)
            self._forget(subscription)

    def _end_deleted(self) -> None:
        """End subscriptions that other engines of the same directory have deleted. Lock held."""
        if self.state.deleted.has_changed():
            for subscription in list(self.subscriptions.values()):
                if self.state.deleted.is_over(subscription.saved):
                    self._forget(subscription)

    def _forget(self, subscription: SubscriptionState) -> None:
        self.drop(subscription, "the subscription was deleted")
        places.remove(self.state, *subscription.key)

    def drop(self, subscription: SubscriptionState, reason: str) -> None:
        """Stop serving a subscription; its stored state stays. With the lock held."""
        for member in list(subscription.members.values()):
            self._report_expelled(subscription, member, reason)
            self._leave(subscription, member)
        for key in list(subscription.cursors):
            self._remove_cursor(subscription, key)
        self.subscriptions.pop(subscription.key, None)
        self._unsaved.pop(subscription.key, None)

    def _near(self, pattern: str, name: str) -> str:
        """A subscription with a pattern or a name similar to a mistyped name."""
        of_pattern = [n for p, n in self.subscriptions if p == pattern]
        if of_pattern:
            return near(name, of_pattern)
        return near(pattern, [p for p, n in self.subscriptions if n == name])

    def get(self, pattern: str, name: str) -> SubscriptionState:
        """A subscription whose queues are at this node. Raises NotFound."""
        found = self.subscriptions.get((pattern, name))
        if pattern not in self.topics and places.is_shared(self.ctx, pattern):
            self.durable.topic(pattern)  # its error names the owner
        if found is None:
            places.check_sound(self.state, pattern, name)
            raise NotFound(
                f"no subscription {name} of {pattern}{self._near(pattern, name)}: see `tidecast "
                "subscription list`"
            )
        return found

    # --- cursors ----------------------------------------------------------------------------------

    def _add_cursors(
        self, subscription: SubscriptionState, here: TopicState, options: ConsumerOptions | None
    ) -> None:
        puller, saved = self._running(), subscription.saved
        known = {(one.topic, one.queue): one for one in saved.cursors}
        for one in here.queues:
            key = (one.topic, one.queue)
            if key in subscription.cursors:
                continue
            before = known.get(key)
            rows = None
            if before is not None:
                token, rows = restored(before, one.log.next_token)
            else:
                token = start_token(one.log, options)
            cursor = puller.call(
                puller.add_cursor,
                subscription.number,
                one.row,
                token,
                restored=rows,
                ack_wait_ns=subscription.ack_wait_ns,
                deliveries_max=saved.max_deliver,
                name=saved.name,
                key_pattern=saved.key_pattern,
                headers=saved.headers,
                where=saved.where,
                predicate=self.filters.get(saved.filter_digest),
            )
            made = CursorState(cursor, puller.cursor_word(cursor), one)
            subscription.cursors[key] = made
            self._by_cursor[cursor] = (subscription, made)
            self.apply_pause(subscription, made)

    def _remove_cursor(self, subscription: SubscriptionState, key: tuple[str, int]) -> None:
        assert self.puller is not None
        puller, cursor = self.puller, subscription.cursors.pop(key)
        self._by_cursor.pop(cursor.number, None)
        self._gated_cursors.discard(cursor.number)
        puller.call(puller.remove_cursor, cursor.number)

    def apply_pause(self, subscription: SubscriptionState, cursor: CursorState) -> None:
        """Set the reasons why a cursor is paused at the puller; none: it is not paused."""
        assert self.puller is not None
        puller, topic = self.puller, self.topics[cursor.here.topic]
        bits = (
            PAUSED_SUBSCRIPTION * subscription.saved.paused
            | PAUSED_QUEUE * cursor.here.paused
            | PAUSED_TOPIC * topic.paused
            | PAUSED_GROWTH * self._gated(subscription, cursor, topic.map)
        )
        puller.call(entries.pause_cursor, puller.words, cursor.number, bits)

    def _gated(
        self, subscription: SubscriptionState, cursor: CursorState, queue_map: QueueMap
    ) -> bool:
        """A queue that a growth made waits until older queues are acknowledged up to their cuts."""
        gated = False
        if queue_map.epoch:
            acked = [
                self.position_of(subscription.cursors[(cursor.here.topic, q)])[0]
                if (cursor.here.topic, q) in subscription.cursors
                else 0
                for q in range(queue_map.queues)
            ]
            gated = bool(queue_map.blocked_by(cursor.here.queue, acked))
        (self._gated_cursors.add if gated else self._gated_cursors.discard)(cursor.number)
        return gated

    def position_of(self, cursor: CursorState) -> tuple[int, int]:
        """(first token that is not acknowledged, next token to deliver) of a cursor."""
        assert self.puller is not None
        puller = self.puller
        mark, next_token = puller.call(entries.position_of, puller.words, cursor.number)
        return int(mark), int(next_token)

    # --- members ----------------------------------------------------------------------------------

    def _join(
        self, subscription: SubscriptionState, client_id: int, options: ConsumerOptions
    ) -> MemberState:
        puller, ctx = self._running(), self.ctx
        identity = next(self._ids)
        made: list[MemberFile] = []

        def make(number: int) -> MemberFile:
            path = ctx.directory / f"member-{identity}"
            bell = ctx.clients[client_id].doorbell
            made.append(
                MemberFile.create(path, options.ring_bytes, _ACKS_BYTES, member=number, bell=bell)
            )
            return made[0]

        number = puller.call(
            puller.add_member,
            make,
            subscription.number,
            in_flight_max=options.max_in_flight,
            in_flight_bytes_max=options.max_bytes_in_flight,
            ack_wait_ns=subscription.ack_wait_ns,
        )
        member = MemberState(identity, number, client_id, made[0])
        subscription.members[identity] = member
        self.consumers[identity] = (subscription, member)
        self._share(subscription)
        return member

    def _grant(self, subscription: SubscriptionState, member: MemberState) -> ConsumerGrant:
        saved = subscription.saved
        return ConsumerGrant(
            consumer_id=member.id,
            member=member.number,
            ring_path=str(member.file.mapped.path),
            wakes_path=str(self._wakes.path),
            pattern=saved.pattern,
            name=saved.name,
            ack_wait_s=saved.ack_wait_s,
            max_deliver=saved.max_deliver,
            dead_letter=saved.dead_letter,
            cursors=self.cursors_of(subscription),
        )

    def cursors_of(self, subscription: SubscriptionState) -> list[tuple[int, str, int]]:
        """(word in frames, topic, queue) of each cursor."""
        return [(cursor.word, *key) for key, cursor in subscription.cursors.items()]

    def close_consumer(self, client_id: int, consumer_id: int) -> None:
        """See `Link.close_consumer`."""
        with self.lock:
            found = self.consumers.get(consumer_id)
            if found is None or found[1].client != client_id:
                raise NotFound(f"client {client_id} has no consumer {consumer_id}")
            self._leave(*found)

    def client_gone(self, client_id: int) -> None:
        """A client died or left: remove its members; other members get their records."""
        with self.lock:
            for subscription, member in list(self.consumers.values()):
                if member.client == client_id:
                    self._leave(subscription, member)
                    self.ctx.notify_all(places.left(subscription, member))

    def _leave(self, subscription: SubscriptionState, member: MemberState) -> None:
        assert self.puller is not None
        puller = self.puller
        self.consumers.pop(member.id, None)
        subscription.members.pop(member.id, None)
        puller.call(puller.drop_member, member.number)
        member.file.mapped.unlink()
        self._share(subscription)
        if not subscription.members and places.stands_by(self.state, subscription):
            self.subscriptions.pop(subscription.key, None)

    def _share(self, subscription: SubscriptionState) -> None:
        """Divide the cursors again among the present members."""
        if self.puller is None:
            return
        puller = self.puller
        cursors = sorted(subscription.cursors)
        numbers = sorted(member.number for member in subscription.members.values())
        before = {key: subscription.cursors[key].owners[0] for key in cursors}
        for key, owners in shares_of(cursors, numbers, before).items():
            cursor = subscription.cursors[key]
            cursor.set_owners(owners)
            puller.call(puller.share, cursor.number, owners)

    # --- positions on disk ------------------------------------------------------------------------

    def _save_if_due(self) -> None:
        now_ns = self.ctx.clock_ns()
        if now_ns >= self._next_save_ns:
            self._next_save_ns = now_ns + int(SAVE_INTERVAL_S * 1e9)
            self._open_gates()
            with self.lock:
                self._end_deleted()
            self.save_all()
            self.attached.look_after()
            with self.lock:
                self.counters.update(self.ctx.counters)
                self.attached.counters.update(self.ctx.counters)

    def _open_gates(self) -> None:
        with self.lock:
            for number in list(self._gated_cursors):
                self.apply_pause(*self._by_cursor[number])

    def save_all(self) -> None:
        """Save the positions that changed."""
        with self.lock:
            if self.puller is None:
                return
            rows = np.fromiter(self._by_cursor, np.int64, len(self._by_cursor))
            dirty = rows[self.puller.state.cursors["dirty"][rows] != 0].tolist()
            changed = {here.key: here for here, _ in map(self._by_cursor.__getitem__, dirty)}
            for subscription in changed.values():
                self.save_or_say(subscription)

    def save_or_say(self, subscription: SubscriptionState) -> None:
        """Save a subscription, or report that it is not saved; `save_all` tries it again.

        A problem that lasts is reported once.
        """
        key = subscription.key
        try:
            self.save_now(subscription)
            self._unsaved.pop(key, None)
        except StorageError as problem:
            detail = str(problem)
            if self._unsaved.get(key) != detail:
                self._unsaved[key] = detail
                event = events.PositionsNotSaved(pattern=key[0], name=key[1], detail=detail)
                self.ctx.notify_all(event)

    def save_now(self, subscription: SubscriptionState) -> None:
        """Save a subscription. Raises StorageError."""
        if self.puller is not None:
            self.letters.note_saving(subscription)
            fresh = saved_cursors(self.puller, subscription.cursors.items())
            kept = [
                one
                for one in subscription.saved.cursors
                if (one.topic, one.queue) not in subscription.cursors
            ]
            subscription.saved.set_cursors(kept + fresh)
        try:
            places.put(self.state, subscription.saved)
        except StorageError:
            if self.puller is not None:
                note_unsaved(self.puller, subscription.cursors.values())
            raise

    # --- reports of the puller --------------------------------------------------------------------

    def dead(self, dead: Dead) -> None:
        """See `Observer`; in the puller's thread."""
        found = self._by_cursor.get(dead.cursor)
        if found is not None:
            self.letters.add(*found, dead)

    def complete_dead(self, dead: Dead) -> None:
        """A dead record is stored, or dropped and reported: acknowledge it."""
        if self.puller is not None:
            puller = self.puller
            puller.call(
                entries.complete_dead, puller.words, dead.cursor, dead.generation, dead.token
            )

    def hostile(self, member: int) -> None:
        """See `Observer`; in the puller's thread."""
        self._inbox.put(lambda: self._expel(member))

    def _expel(self, number: int) -> None:
        with self.lock:
            for subscription, member in list(self.consumers.values()):
                if member.number == number:
                    self._report_expelled(subscription, member, "it wrote invalid acks")
                    self._leave(subscription, member)

    def _report_expelled(
        self, subscription: SubscriptionState, member: MemberState, reason: str
    ) -> None:
        event = events.ConsumerExpelled(
            topic=subscription.saved.pattern,
            subscription=subscription.saved.name,
            consumer_id=member.id,
            reason=reason,
        )
        self.ctx.notify(member.client, event)

    def gap(self, cursor: int, first: int, end: int) -> None:
        """See `Observer`; in the puller's thread."""
        found = self._by_cursor.get(cursor)
        if found is not None:
            subscription, here = found
            event = events.RecordsGone(
                topic=here.here.topic,
                queue=here.here.queue,
                first=first,
                end=end,
                subscription=subscription.saved.name,
            )
            subscription.gone.append(event)
            self._inbox.put(lambda: self.ctx.notify_all(event))

    def damaged(self, q: int, token: int, problem: str) -> None:
        """See `Observer`; in the puller's thread."""
        one = self._rows.get(q)
        here = None if one is None else self.topics.get(one.topic)
        if here is not None and not here.owned():
            return  # the next owner removed the files: nothing in them is damaged
        if one is not None:
            one.note_unreadable(token)
            event = events.QueueUnreadable(
                topic=one.topic, queue=one.queue, token=token, detail=problem
            )
            self._inbox.put(lambda: self.ctx.notify_all(event))

    def readable(self, q: int, token: int) -> None:
        """See `Observer`; in the puller's thread."""
        one = self._rows.get(q)
        if one is not None:
            one.note_readable(token)

    def perform(self, action: str, arguments: dict[str, Any]) -> Any:
        """See `Link.administer`. Raises ConfigError for an unknown action, NotFound."""
        found = self._actions.get(action)
        if found is None:
            allowed = ", ".join(sorted(self._actions))
            raise ConfigError(f"action: {action!r}: allowed {allowed}")
        try:
            return found(self, **arguments)
        except TypeError as problem:
            raise ConfigError(f"{action}: {problem}") from None
