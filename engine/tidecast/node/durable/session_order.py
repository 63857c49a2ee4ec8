"""When a producer's next session may begin: once the rest of its older sessions is stored.

A session begins behind the last sequence in the log and fences older sessions. Messages that only
an older ring holds can then never be stored. They were not acked; but if a crash left a part of
them in the log, a hole would stay below the stored records. `DurableTopic._find_torn` finds such
holes. So no session begins before a ring has brought the missing messages, or before all rings were
silent for `image_timeout_s`. Then a session begins that repeats the missing messages; if there is
none, `ProducerHole` reports the hole.

Called with the node's lock held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidecast import events
from tidecast.api.link import PublicationOptions
from tidecast.buffers.ring_file import describe
from tidecast.errors import ConfigError
from tidecast.layout import packet as wire
from tidecast.layout import recorder as rec
from tidecast.layout import ring as lay
from tidecast.layout.counters import QueueCounter as C
from tidecast.native.mapped import Bytes
from tidecast.native.packing import unpack_from
from tidecast.node.durable import archiver_tables
from tidecast.node.durable.sources import SourceRegistry
from tidecast.node.durable.topic import DurableTopic
from tidecast.node.live.setup import ProducerBlock, Setup
from tidecast.node.state import Publication
from tidecast.protocol.dedup import Producer, Session

RIVAL_S = 1.0
"""How long a new session waits for an older session that is still in use."""
MEET_S = 2.0
"""How long a new session waits for rings of other nodes, which announce themselves once a second,
when the topic's owner has just begun."""


ASKED_MAX = 4096
"""Publishers whose session has not begun and that are remembered; the oldest is forgotten first."""
ASKED_S = 3.0
"""A waiting publisher's node repeats its SETUP: silence for so long means that it is gone."""
HEARD_S = 3.0
"""A new session waits for a ring without a publisher only while its node was heard of within this
time."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A session that a publisher asks for.

    ``line``, ``after``: the first session of the publisher that resumes one, and its newest
    epoch. ``left``: the publisher is gone, its ring is repeated. ``born_ns``: when the ring was
    made, by this host's stamps.
    """

    topic: str
    producer: int
    session: int
    first_seq: int
    line: int = 0
    after: int = 0
    left: bool = False
    born_ns: int = 0

    @property
    def of_line(self) -> int:
        """The line of its publisher: the id of the publisher's first session."""
        return self.line or self.session

    def precedes(self, other: Claim) -> bool:
        """Whether it must begin before another waiting claim of its producer.

        Rings without a publisher come before publishers that begin now, which follow behind those
        rings and fence them. Among rings, the ring with the older sequences comes first.
        """
        same = self.topic == other.topic and self.producer == other.producer
        return same and self.session != other.session and self._order < other._order

    @property
    def _order(self) -> tuple[int, ...]:
        if self.left or self.line:
            return 0, self.after, self.first_seq, not self.left
        return (1,)


def claim_of_options(topic: str, producer: int, session: int, options: PublicationOptions) -> Claim:
    """The claim of a client of this node. Raises ConfigError."""
    line, after = options.line, options.after
    for name, value in (("line", line), ("after", after)):
        if not 0 <= value <= wire.EPOCH_MAX:
            raise ConfigError(f"{name}: {value}: allowed 0..{wire.EPOCH_MAX}")
    return Claim(topic, producer, session, options.first_seq or 0, line, after)


def claim_of_ring(ring: Bytes, *, left: bool) -> Claim:
    """The claim of a ring that has no epoch yet."""
    about = describe(ring)
    producer, _, first_seq = archiver_tables.ring_session(ring)
    line, after = unpack_from("<II", ring, lay.LINE_AT)
    (born_ns,) = unpack_from("<q", ring, lay.CREATED_AT)
    return Claim(about.topic_name, producer, about.session, first_seq, line, after, left, born_ns)


def claim_of_setup(
    setup: Setup, block: ProducerBlock, topic: str, *, stamp_ns: int, clock_ns: int
) -> Claim:
    """The claim of a SETUP with epoch 0.

    ``stamp_ns``, ``clock_ns``: the present time. The ages in the SETUP count from its arrival,
    which may be long ago.
    """
    waited_ns = max(clock_ns - setup.received_ns, 0)
    born_ns = stamp_ns - waited_ns - max(setup.age_ns, 0) - max(block.older_ns, 0)
    return Claim(
        topic,
        block.id,
        setup.session,
        block.first_seq,
        block.line,
        block.after,
        setup.left,
        born_ns,
    )


@dataclass(slots=True)
class Opened:
    """A session that was granted to another node and has not begun."""

    topic: str
    session: Session
    at_s: float
    left: bool


@dataclass(slots=True, eq=False)
class Held:
    """A publication of this node whose session may not begin yet."""

    publication: Publication
    channel: int
    since_s: float
    producer: int = 0

    def __post_init__(self) -> None:
        if self.publication.remote >= 0:
            self.producer = archiver_tables.ring_session(self.publication.mapped.array)[0]


class PendingSessions:
    """Requested or granted sessions that have not begun, of this node and of other nodes."""

    def __init__(self) -> None:
        self.held: list[Held] = []
        self.opened: dict[int, Opened] = {}
        self._claims: dict[int, dict[int, Claim]] = {}
        """Requests of other nodes by producer, then session: thousands may ask at a time."""

    def ask(self, claim: Claim) -> None:
        """A session of another node waits; a later claim of it replaces the one before."""
        self._claims.setdefault(claim.producer, {})[claim.session] = claim

    def give_up(self, claim: Claim) -> None:
        """A session of another node no longer waits."""
        claims = self._claims[claim.producer]
        del claims[claim.session]
        if not claims:
            del self._claims[claim.producer]

    def waiting(self, producer: int) -> Iterator[Claim]:
        """The waiting sessions of a producer, of this node and of other nodes."""
        yield from self._claims.get(producer, {}).values()
        for one in self.held:
            ring, left = one.publication.mapped.array, one.publication.closing
            if one.producer == producer and not archiver_tables.ring_session(ring)[1]:
                yield claim_of_ring(ring, left=left)

    def granted(self, producer: Producer, session: int) -> Iterator[Opened]:
        """Other granted sessions of a producer that have not begun."""
        return (
            one
            for each, one in self.opened.items()
            if each != session and one.session.producer is producer
        )


class Grants:
    """See module."""

    def __init__(self, registry: SourceRegistry, pending: PendingSessions) -> None:
        self._registry, self._pending = registry, pending
        self._asked: dict[int, int] = {}
        """By a publisher's first session: the producer's newest epoch when it first asked."""
        self._awaited: dict[tuple[str, int, int], list[int]] = {}
        """By topic, producer and owner: the ends of the logs that a session waits for."""
        self._fenced_s: dict[tuple[str, int], float] = {}
        """By topic and producer: when its newest session began here, for `ASKED_S`."""

    def overtaken(self, topic: DurableTopic, claim: Claim) -> bool:
        """Has a newer session of the producer begun, so that this one may never?

        A publisher that continues a session knows its epoch: a higher epoch is another publisher's.
        While its session has not begun it knows none: then the epoch counts that the producer had
        when the publisher first asked. Of another claim whose publisher is gone the age of its ring
        decides, for the newest session may have waited for long; it must not fence a living
        publisher, either.
        """
        found = topic.producers.known.get(claim.producer)
        self._note_asked(claim, 0 if found is None else found.epoch)
        after = max(claim.after, self._asked.get(claim.of_line, 0))
        if topic.producers.overtaken(claim.producer, claim.line, after):
            return True
        if found is None or not claim.left:
            return False
        if not claim.line and found.line != claim.session and found.born_ns > claim.born_ns:
            return True
        granted = self._pending.granted(found, claim.session)
        return any(not one.left for one in granted) or any(
            each.session != claim.session and not self._ends(each) for each in self._sources(found)
        )

    def note_left(self, claim: Claim, epoch: int) -> None:
        """A claim got an epoch: if its publisher is gone, younger claims that waited follow it.

        They knew the epoch before, and this epoch is not a rival's. The same holds for publishers
        that lost their engine meanwhile: they come back with a line.
        """
        for other in self._pending.waiting(claim.producer) if claim.left else ():
            known = max(other.after, self._asked.get(other.of_line, 0))
            if known == epoch - 1 and other.born_ns > claim.born_ns:
                self._asked[other.of_line] = epoch

    def _note_asked(self, claim: Claim, epoch: int) -> None:
        if claim.after or claim.left or claim.of_line in self._asked:
            return
        while len(self._asked) >= ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        self._asked[claim.of_line] = epoch

    def heard_since(self, claim: Claim, heard_s: float) -> bool:
        """Was a claim heard of at ``heard_s`` after the producer's newest session began?

        A dead engine asks no more, and its publisher continues at another engine: an earlier claim
        must not fence it.
        """
        return heard_s >= self._fenced_s.get((claim.topic, claim.producer), -1.0)

    def ready(self, topic: DurableTopic, claim: Claim, waited_s: float) -> bool:
        """May a session begin that has waited so long?

        Its publisher counts all before it as durable. The next owner of a topic that has only
        its storage must then have them, too: the older sessions are fenced first, and the storage
        gets their messages before the session begins.
        """
        if not self._ready(topic, claim, waited_s):
            return False
        found = topic.producers.known.get(claim.producer)
        if not topic.storage_alone or found is None:
            return True
        if any(each.session != claim.session for each in self._sources(found)):
            self.fence(topic, claim.producer, "")
        key = (topic.config.name, claim.producer, topic.owner)
        ends = self._awaited.setdefault(key, [log.next_token for log in topic.logs])
        if any(log.durable_token < end for log, end in zip(topic.logs, ends, strict=False)):
            return False
        del self._awaited[key]
        return True

    def _ready(self, topic: DurableTopic, claim: Claim, waited_s: float) -> bool:
        waiting = list(self._pending.waiting(claim.producer))
        if any(other.precedes(claim) for other in waiting):
            return False
        found = topic.producers.known.get(claim.producer)
        if found is None:
            return True
        rivals = [s for s in self._sources(found) if s.session != claim.session]
        if rivals and self._disk_refuses(topic):
            return False  # messages that were read wait for the disk, and exist nowhere else
        if self.torn(topic, found, [claim]):
            return False
        late = waited_s >= RIVAL_S and not claim.left
        granted = self._pending.granted(found, claim.session)
        if any(self._now_s - one.at_s < RIVAL_S for one in granted):
            return late  # it may begin any moment
        if not found.met and topic.config.owner:
            alone = not any(claim.precedes(other) for other in waiting)
            return self._now_s - topic.opened_s >= self._meet_s(claim, alone=alone)
        busy = [each for each in rivals if each.image and not self._drained(each)]
        late = late and not any(each.left and self._is_heard(each) for each in busy)
        return late or not busy

    def _meet_s(self, claim: Claim, *, alone: bool) -> float:
        """How long to wait for a living session of another node that began before this owner did.

        ``alone``: no other claim waits that would fence that session anyway.
        """
        if claim.left and not claim.line and alone:
            return self._registry.ctx.topology.node.image_timeout_s
        return MEET_S

    def torn(self, topic: DurableTopic, producer: Producer, claims: Iterable[Claim]) -> bool:
        """Does something below its last sequence still have to come from a session that began?

        If it was waited for in vain it is given up, unless a session is granted that repeats it,
        or one of ``claims`` does.
        """
        if not producer.torn_seq:
            return False
        sources = self._sources(producer)
        heard_s = topic.opened_s
        for source in sources:
            record = self._registry.runtime.state.sources[source.slot]
            if record["first_seq"] > producer.torn_seq:
                continue  # it has begun behind it
            if record["first_seq"] + record["a_count"] > producer.torn_seq:
                producer.note_whole()
                return False
            heard_s = max(heard_s, self._heard_s(source))
        patience_s = self._registry.ctx.topology.node.image_timeout_s
        if not topic.config.owner and not sources:
            patience_s = 0.0  # rings of other nodes are not for us, and ours were there at once
        if self._now_s - heard_s < patience_s:
            return True
        granted = self._pending.granted(producer, 0)
        first = [each.first_seq for each in claims] + [each.session.first_seq for each in granted]
        if not any(0 < seq <= producer.torn_seq for seq in first):
            self._report_hole(topic, producer)
            producer.note_hole()
        return False

    def report_fenced(
        self, topic: DurableTopic, producer: int, session: int, epoch: int, name: str = ""
    ) -> None:
        """A newer session of a producer has ended this one, or was there before it began."""
        ctx, where = self._registry.ctx, topic.config.name
        ctx.counters.values[self._registry.row_of(where, 0), C.SESSIONS_FENCED] += 1
        ctx.note(rec.ALERT, rec.Code.PRODUCER_FENCED, session, producer, epoch)
        self._registry.notify(
            events.ProducerFenced(
                topic=where, producer=name or f"{producer:x}", session=session, epoch=epoch
            )
        )

    def _report_hole(self, topic: DurableTopic, producer: Producer) -> None:
        ctx, name = self._registry.ctx, topic.config.name
        first, end = producer.acked_seq + 1, producer.torn_seq
        ctx.counters.values[self._registry.row_of(name, 0), C.PRODUCER_HOLES] += 1
        ctx.note(rec.ALERT, rec.Code.PRODUCER_HOLE, topic.config.wire_id, producer.id, first, end)
        self._registry.notify(
            events.ProducerHole(topic=name, producer=f"{producer.id:x}", first=first, end=end)
        )

    def fence(self, topic: DurableTopic, producer: int, name: str) -> None:
        """A session begins: committed messages of older sessions go into the log, and they end."""
        older = [
            source
            for source in self._registry.sources.values()
            if source.producer.id == producer and source.topic == topic.config.name
        ]
        if older:
            self._registry.drain(topic, older)
        for source in older:
            if self._registry.sources.get(source.slot) is not source:
                continue  # drained to its end: an inline archiver has reported it meanwhile
            self._registry.remove(source.slot, topic, lay.ACK_FENCED)
            self._registry.drop(source, lay.ACK_FENCED)
            self.report_fenced(topic, producer, source.session, source.epoch, name)
        self._note_fenced(topic.config.name, producer)

    def _note_fenced(self, topic: str, producer: int) -> None:
        self._fenced_s.pop((topic, producer), None)
        self._fenced_s[topic, producer] = self._now_s
        for each, at_s in list(self._fenced_s.items()):
            if self._now_s - at_s <= ASKED_S:
                break
            del self._fenced_s[each]

    def whole(self, topic: DurableTopic) -> bool:
        """Whether no half-appended messages are expected: then keys may move to other queues."""
        return not any(
            self.torn(topic, each, self._pending.waiting(each.id)) or each.torn_seq
            for each in topic.producers.known.values()
        )

    @property
    def _now_s(self) -> float:
        return self._registry.ctx.now_s()

    def _sources(self, producer: Producer) -> list[archiver_tables.Source]:
        return [s for s in self._registry.sources.values() if s.producer is producer]

    def _disk_refuses(self, topic: DurableTopic) -> bool:
        return bool(self._registry.runtime.state.topics[topic.slot]["errno"])

    def _ends(self, source: archiver_tables.Source) -> bool:
        """Whether its publisher is gone; the rest of its ring is still read."""
        publication = self._registry.ctx.pubs.get(source.publication)
        closing = publication is not None and publication.closing
        return source.left or closing or self._drained(source)

    def _is_heard(self, source: archiver_tables.Source) -> bool:
        return self._now_s - self._heard_s(source) < HEARD_S

    def _drained(self, source: archiver_tables.Source) -> bool:
        return bool(self._registry.runtime.state.sources[source.slot]["drained_reported"])

    def _heard_s(self, source: archiver_tables.Source) -> float:
        """When a source was heard of last; a source of this node counts as heard now."""
        image = self._registry.ctx.images_by_id.get(source.image)
        if image is None:
            return self._now_s
        if image.slot < 0:
            return image.gone_s
        return int(image.runtime.rx_state.images[image.slot]["heard_ns"]) / 1e9
