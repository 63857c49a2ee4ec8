"""Where subscriptions are kept on disk, and how they follow queues that move.

The state of queues that engines share lies with the queues, in the directory of their owner
(`tidecast.log.takeover`): so the next owner finds the state of the owner before, and an engine that
is no longer the owner writes where no engine reads. All else lies in the engine's data directory.

A consumer of queues that another engine has may be open here all the same: it *stands by*, and gets
its records once this engine has taken the queues.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from tidecast import events
from tidecast.api.link import ConsumerOptions
from tidecast.config.leases import SHARED
from tidecast.config.topology import is_pattern, matches
from tidecast.disk import sync_directory, write_atomically
from tidecast.errors import ConfigError, CorruptLog, NotFound, StorageError
from tidecast.layout import recorder as rec
from tidecast.log.files import seal_json
from tidecast.log.inspect import PAUSED_NAME, PausedTopic, read_paused
from tidecast.log.queue_files import QueueFiles, queues_of
from tidecast.log.takeover import SUBSCRIPTIONS_NAME
from tidecast.node.consumers.checks import check_may_create, check_tokens, or_default
from tidecast.node.consumers.state import ConsumersState, MemberState, SubscriptionState, TopicState
from tidecast.node.context import NodeContext
from tidecast.node.durable.topic import DurableTopic
from tidecast.queues.subscription_store import (
    LetterNumbers,
    SavedCursor,
    SavedSubscription,
    SubscriptionStore,
    key_of,
    read_subscription,
)

_log = logging.getLogger("tidecast.node")
ACK_WAIT_S, MAX_DELIVER = 30.0, 5
MARK_OF_PAUSE = "paused "
"""Begins the mark of a pause among the reports that stand, see `SourceRegistry.stand`."""


def save_paused(here: TopicState) -> None:
    """Keep the paused topics and queues. Raises StorageError."""
    if here.directory is None:
        return
    path = here.directory / PAUSED_NAME
    found = PausedTopic(here.paused, [one.queue for one in here.queues if one.paused])
    try:
        if found.topic or found.queues:
            write_atomically(path, seal_json(msgspec.json.encode(found)))
        else:
            path.unlink(missing_ok=True)
            sync_directory(path.parent)
    except OSError as problem:
        if here.owned():
            raise StorageError(f"{path}: {problem.strerror}", problem.errno or 0) from problem


def restore_paused(state: ConsumersState, here: TopicState) -> None:
    """Pause the topics and queues that were paused before the restart, and report it."""
    if here.directory is None:
        return
    path = here.directory / PAUSED_NAME
    try:
        found = read_paused(here.directory)
    except (OSError, ValueError, msgspec.MsgspecError) as problem:
        found = PausedTopic(topic=True)  # the paused queues are not known: nothing is delivered
        state.ctx.note(rec.ALERT, rec.Code.FILE_DAMAGED, here.config.wire_id, -1)
        state.durable.stand(
            here.config.name,
            str(path),
            events.FileDamaged(
                topic=here.config.name,
                queue=-1,
                file=str(path),
                detail=f"{problem}: the topic is paused until it is resumed",
            ),
        )
    here.set_paused(found.topic)
    if found.topic:
        report_paused(state, here.config.name, -1, "", paused=True)
    for one in here.queues:
        one.set_paused(one.queue in found.queues)
        if one.paused:
            report_paused(state, one.topic, one.queue, "", paused=True)


def _mark_of_pause(queue: int, name: str) -> str:
    return f"{MARK_OF_PAUSE}{queue} {name}"


def report_paused(
    state: ConsumersState, topic: str, queue: int, name: str, *, paused: bool
) -> None:
    """Notify all clients; of a pause also clients that connect later."""
    durable, mark = state.durable, _mark_of_pause(queue, name)
    event = events.DeliveryPaused(topic=topic, queue=queue, subscription=name, paused=paused)
    if paused:
        durable.stand(topic, mark, event)
    else:
        durable.standing.pop((topic, mark), None)
        durable.notify(event)


def report_pause_of(state: ConsumersState, subscription: SubscriptionState) -> None:
    """Notify clients of a pause, or its end, that was stored before the queues came here."""
    saved = subscription.saved
    reported = (saved.pattern, _mark_of_pause(-1, saved.name)) in state.durable.standing
    if saved.paused != reported:
        report_paused(state, saved.pattern, -1, saved.name, paused=saved.paused)


def _forget_pauses(state: ConsumersState, topic: str) -> None:
    """Another engine reports from now on whether a topic's queues are paused."""
    for place in list(state.durable.standing):
        if place[0] == topic and place[1].startswith(MARK_OF_PAUSE):
            state.durable.standing.pop(place, None)


def new_subscription(
    state: ConsumersState, pattern: str, name: str, options: ConsumerOptions
) -> SavedSubscription:
    """A subscription as it begins."""
    return SavedSubscription(
        pattern=pattern,
        name=name,
        created_ns=state.ctx.wall_ns(),
        generation=state.deleted.generation(pattern, name),
        ack_wait_s=or_default(options.ack_wait_s, ACK_WAIT_S),
        max_deliver=or_default(options.max_deliver, MAX_DELIVER),
        dead_letter=options.dead_letter or "",
        key_pattern=options.key_pattern or "",
        headers=options.headers or {},
        filter_digest=options.filter_digest or "",
        where=options.where or "",
    )


def check_readable(state: ConsumersState, topic: str, start: str) -> None:
    """Raise the error of a topic that is not open, so that none subscribes to it.

    While an adapter waits for its system only its beginning is a known place.
    """
    if topic not in state.waiting:
        check_durable(state, topic)
    elif start != "earliest":
        state.check_open(topic)


def check_durable(state: ConsumersState, topic: str, *, here: bool = True) -> None:
    """Raise NotFound, ConfigError when no queues of a topic can be read, ``here`` or anywhere."""
    config = state.ctx.topic_by_name.get(topic)
    if config is None:
        how = f"create it (tidecast topic create {topic} --mode durable)"
        raise NotFound(f"no topic {topic}: {how}")
    if config.mode != "durable":
        why = "is live, it keeps nothing: use subscribe(), or make it durable"
        raise ConfigError(f"topic {topic} {why}")
    if here and not state.durable.keeps(config):
        state.durable.topic(topic)  # its error names the owner


def check_target(state: ConsumersState, topic: str) -> None:
    """Raise NotFound, ConfigError, Conflict for a topic that cannot take dead letters."""
    state.check_writable(topic)
    if topic not in state.topics:
        check_durable(state, topic, here=False)


def check_new(state: ConsumersState, pattern: str, options: ConsumerOptions) -> None:
    """Raise an error if a new subscription cannot have ``options``. With the lock held."""
    letters = options.dead_letter
    if letters:
        check_target(state, letters)
        if matches(pattern, letters):
            raise ConfigError(
                f"dead_letter: {letters!r}: {pattern} covers it: refused messages would come again "
                "for ever: take a topic that it does not cover"
            )
    covered = [here for name, here in state.topics.items() if matches(pattern, name)]
    if covered and options.start == "tokens":
        check_tokens(pattern, options.start_tokens, [q for here in covered for q in here.queues])


def store_of(topic: DurableTopic) -> SubscriptionStore | None:
    """Where positions in a topic's queues are kept; None: in the engine's data directory."""
    if not topic.owner:
        return None
    return SubscriptionStore(topic.directory / SUBSCRIPTIONS_NAME, make=False)


def is_shared(ctx: NodeContext, pattern: str) -> bool:
    """Is it the name of a topic whose queues engines share?"""
    config = ctx.topic_by_name.get(pattern)
    return config is not None and config.owner == SHARED


def _may_be_elsewhere(ctx: NodeContext, pattern: str) -> bool:
    """May other engines have a subscription, or files of it, for queues that engines share?"""
    return is_shared(ctx, pattern) or (
        is_pattern(pattern) and any(each.owner == SHARED for each in ctx.topic_by_name.values())
    )


def stands_by(state: ConsumersState, subscription: SubscriptionState) -> bool:
    """Another engine has the queues of a subscription to one topic."""
    pattern = subscription.saved.pattern
    return pattern not in state.topics and is_shared(state.ctx, pattern)


def put(state: ConsumersState, saved: SavedSubscription) -> None:
    """Save a subscription, in each place the positions that belong there. Raises StorageError."""
    shared = {
        name: here
        for name, here in state.topics.items()
        if here.store is not None and matches(saved.pattern, name)
    }
    for name, here in shared.items():
        mine = [cursor for cursor in saved.cursors if cursor.topic == name]
        assert here.store is not None
        try:
            here.store.save(msgspec.structs.replace(saved, cursors=mine))
        except StorageError:
            if here.owned():
                raise  # else the next owner has removed the directory: no caller waits for this
    if is_shared(state.ctx, saved.pattern):
        state.store.remove(saved.pattern, saved.name)  # of before the topic was shared
    else:
        rest = [cursor for cursor in saved.cursors if cursor.topic not in shared]
        state.store.save(msgspec.structs.replace(saved, cursors=rest))


def note_deleted(state: ConsumersState, pattern: str, name: str, generation: int) -> None:
    """A subscription is deleted here: other engines that share our queues see it, too.

    Raises StorageError: then it is not deleted.
    """
    if _may_be_elsewhere(state.ctx, pattern):
        state.deleted.note(pattern, name, generation)


def remove(state: ConsumersState, pattern: str, name: str) -> None:
    """Forget a subscription that was deleted."""
    state.durable.standing.pop((pattern, _mark_of_pause(-1, name)), None)
    state.store.remove(pattern, name)
    for topic, here in state.topics.items():
        if here.store is not None and matches(pattern, topic):
            here.store.remove(pattern, name)


def note_damaged(state: ConsumersState, files: list[Path]) -> list[SubscriptionState]:
    """Report files of subscriptions that cannot be read. Those to be dropped. Lock held."""
    lost = []
    for path in files:
        pattern, name = key_of(path)
        state.unsound[pattern, name] = path
        event = events.SubscriptionDamaged(file=str(path), topic=pattern, subscription=name)
        state.durable.stand(pattern, str(path), event)
        config = state.ctx.topic_by_name.get(pattern)
        wire_id = config.wire_id if config is not None else 0
        state.ctx.note(rec.ALERT, rec.Code.SUBSCRIPTION_DAMAGED, wire_id)
        _log.error("%s", _damaged(pattern, name, path))
        mine = state.subscriptions.get((pattern, name))
        if mine is not None:  # its members stood by
            lost.append(mine)
    return lost


def check_sound(state: ConsumersState, pattern: str, name: str) -> None:
    """Raise CorruptLog for a subscription whose file is damaged: to begin again would skip."""
    path = state.unsound.get((pattern, name))
    if path is not None:
        raise _damaged(pattern, name, path)


def _damaged(pattern: str, name: str, path: Path) -> CorruptLog:
    return CorruptLog(
        f"subscription {name} of {pattern}: {path} is damaged, and its positions are not known: "
        "stop the engine and restore the file with the suffix .sub, or delete the subscription "
        f"(tidecast subscription delete {pattern} {name}) and create it where it is to start"
    )


def forget_damaged(state: ConsumersState, pattern: str, name: str) -> bool:
    """A damaged subscription is deleted. False: it is not damaged."""
    path = state.unsound.pop((pattern, name), None)
    if path is None:
        return False
    state.durable.standing.pop((pattern, str(path)), None)
    path.unlink(missing_ok=True)
    mine = state.subscriptions.get((pattern, name))
    if mine is None:
        remove(state, pattern, name)
    return mine is None


def holds_all(state: ConsumersState, topic: str) -> bool:
    """Is a subscription of a topic damaged? Then its unacked records are not known."""
    return any(matches(pattern, topic) for pattern, _ in list(state.unsound))


def taken(
    state: ConsumersState, here: TopicState
) -> tuple[list[SavedSubscription], list[SubscriptionState]]:
    """Queues have come here: the subscriptions that came with them and are not known here yet.

    Known subscriptions resume where the owner before had them. Second: subscriptions whose file is
    damaged.
    """
    if here.store is None:
        return [], []
    found, bad = here.store.load()
    lost = note_damaged(state, bad)
    fresh = []
    state.deleted.look()
    for saved in found:
        mine = state.subscriptions.get((saved.pattern, saved.name))
        if state.deleted.is_over(saved):
            here.store.remove(saved.pattern, saved.name)
        elif mine is None:
            letters = _letters_in(saved, here.config.name)
            fresh.append(msgspec.structs.replace(saved, letters_of=letters))
        else:
            mine.replace(_merged(mine.saved, saved, here.config.name))
    return fresh, lost


def _merged(mine: SavedSubscription, came: SavedSubscription, topic: str) -> SavedSubscription:
    """A subscription by pattern may have other queues here; this state is of ``topic``."""
    starts = dict(mine.redrive_start)
    for queue, token in came.redrive_start.items():
        starts[queue] = max(token, starts.get(queue, 0))
    return msgspec.structs.replace(
        came,
        cursors=[*(cursor for cursor in mine.cursors if cursor.topic != topic), *came.cursors],
        redriven=sorted({*map(tuple, mine.redriven), *map(tuple, came.redriven)}),
        redrive_start=starts,
        dead_open=max(mine.dead_open, came.dead_open),
        letters_of={
            **{name: each for name, each in mine.letters_of.items() if name != topic},
            **_letters_in(came, topic),
        },
    )


def _letters_in(saved: SavedSubscription, topic: str) -> dict[str, LetterNumbers]:
    """The dead letters of a topic by a file that lies with its queues."""
    return {name: each for name, each in saved.letters_of.items() if name == topic}


def gone(state: ConsumersState, name: str) -> None:
    """Shared queues have left: from now on the next owner stores their state."""
    _forget_pauses(state, name)
    for key, subscription in list(state.subscriptions.items()):
        saved = subscription.saved
        saved.set_cursors([cursor for cursor in saved.cursors if cursor.topic != name])
        if saved.pattern == name and not subscription.members:
            del state.subscriptions[key]


def left(subscription: SubscriptionState, member: MemberState) -> events.ConsumerLeft:
    """A member whose client is gone."""
    topic, name = subscription.key
    return events.ConsumerLeft(
        topic=topic, subscription=name, consumer_id=member.id, members=len(subscription.members)
    )


def stand_by(
    state: ConsumersState, pattern: str, name: str, options: ConsumerOptions
) -> SubscriptionState | None:
    """A subscription for consumers that wait for queues that another engine has; None: create it.

    It has the state that the owner stored. A subscription that the owner does not know begins at
    the place of ``options`` in the log as it is now, unless the owner knows it when the queues
    come.
    """
    if (
        not is_shared(state.ctx, pattern)
        or pattern in state.topics
        or pattern in state.durable.broken
    ):
        return None
    leases = state.leases
    queues = leases.directory / "queues" / pattern
    store = SubscriptionStore(queues / SUBSCRIPTIONS_NAME)
    damaged = store.damaged(pattern, name)
    if damaged is not None:
        raise _damaged(pattern, name, damaged)
    saved = read_subscription(store.path(pattern, name))
    if saved is None or state.deleted.is_over(saved):
        check_may_create(pattern, name, options)
        saved = new_subscription(state, pattern, name, options)
        cursors = [
            SavedCursor(
                pattern, queue, _start(QueueFiles(leases.directory, pattern, queue), options)
            )
            for queue in queues_of(leases.directory, pattern)
        ]
        saved.set_cursors(cursors)
    subscription = state.new(saved)
    owner = leases.owners_of(pattern).current().name
    state.durable.notify(events.ConsumerStandsBy(topic=pattern, subscription=name, owner=owner))
    return subscription


def _start(files: QueueFiles, options: ConsumerOptions) -> int:
    """As `start_token` has it, in files that another engine writes."""
    if options.start == "latest":
        return files.end_token()
    if options.start == "time":
        return files.token_at_time(options.start_time_ns)
    return options.start_tokens.get(files.queue, 0) if options.start == "tokens" else 0
