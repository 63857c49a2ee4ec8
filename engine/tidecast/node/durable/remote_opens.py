"""Sessions that publishers on other nodes ask the owner for: SETUPs with epoch 0, and the answers.

Granted is what may begin (see `durable_grants`); the same again when the answer was lost. Called
with the node's lock held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tidecast import events as ev
from tidecast.agents.live.remote_acks import answer_setup
from tidecast.errors import Conflict, Fenced, SequenceGap, StorageError
from tidecast.layout import ring as lay
from tidecast.node.durable.session_order import Claim, claim_of_setup
from tidecast.node.live.setup import ProducerBlock, Setup
from tidecast.node.live.transports import TransportRuntime
from tidecast.protocol.dedup import Producer, Session

if TYPE_CHECKING:
    from tidecast.node.durable.service import Durable
    from tidecast.node.durable.topic import DurableTopic

OPENED_S, OPENED_MAX = 60.0, 4096
"""A session that was opened and is not begun is forgotten after this long."""
ASKED_S = 3.0
"""A session that waits to begin and was not announced for so long is given up."""


@dataclass(slots=True)
class _Opened:
    topic: str
    session: Session
    at_s: float
    left: bool


@dataclass(slots=True)
class _Asked:
    runtime: TransportRuntime
    setup: Setup
    block: ProducerBlock
    claim: Claim
    since_s: float
    heard_s: float


class Openings:
    """See module."""

    def __init__(self, durable: Durable) -> None:
        self.durable, self.node = durable, durable.node
        self._opened: dict[int, _Opened] = {}
        self._asked: dict[int, _Asked] = {}
        self._claims: dict[int, dict[int, Claim]] = {}
        """What is asked, by producer, then session: thousands may ask at a time."""
        self._overtaken: dict[int, None] = {}

    def ask(
        self, runtime: TransportRuntime, setup: Setup, block: ProducerBlock, topic: DurableTopic
    ) -> None:
        """Somebody's session waits until it may begin."""
        now_s = self.node.clock_ns() / 1e9
        asked = self._asked.get(setup.session)
        if asked is None:
            while len(self._asked) >= OPENED_MAX:
                self._give_up(next(iter(self._asked)))
            name, wall_ns = topic.config.name, self.durable.wall_ns()
            claim = claim_of_setup(setup, block, name, wall_ns)
            asked = _Asked(runtime, setup, block, claim, now_s, now_s)
            self._asked[setup.session] = asked
        if setup.left and not asked.claim.left:
            asked.claim = replace(asked.claim, left=True)  # since
        self._claims.setdefault(block.id, {})[setup.session] = asked.claim
        asked.heard_s = now_s
        self._open(asked, topic)

    def waiting(self, producer: int) -> Iterable[Claim]:
        """What is asked for by sessions of a producer and not granted."""
        return self._claims.get(producer, {}).values()

    def _give_up(self, session: int) -> None:
        asked = self._asked.pop(session, None)
        if asked is None:
            return
        claims = self._claims[asked.block.id]
        del claims[session]
        if not claims:
            del self._claims[asked.block.id]

    def look(self, now_s: float) -> None:
        """Grant what need not wait any more."""
        for session, asked in list(self._asked.items()):
            topic = self.durable.topics.get(asked.claim.topic)
            if topic is None or now_s - asked.heard_s > ASKED_S:
                self._give_up(session)
            elif session in self._asked:
                self._open(asked, topic)

    def granted(self, producer: Producer, session: int) -> Iterator[_Opened]:
        """Other sessions of a producer that were granted and have not begun."""
        return (
            one for each, one in self._opened.items()
            if each != session and one.session.producer is producer
        )  # fmt: skip

    def _open(self, asked: _Asked, topic: DurableTopic) -> None:
        """Grant epoch and first sequence; the same again when the answer was lost."""
        setup, block, claim = asked.setup, asked.block, asked.claim
        opened = self._opened.get(setup.session)
        if opened is None:
            if self.durable.grants.overtaken(topic, claim):
                self._refuse(asked, topic, lay.ACK_FENCED, 1)
                self._tell_overtaken(topic, claim)
                return
            waited_s = self.node.clock_ns() / 1e9 - asked.since_s
            if not self.durable.grants.ready(topic, claim, waited_s):
                return
            try:
                self.durable.fence(topic, block.id, "")
                session = topic.grant(
                    block.id, block.first_seq or None, self.durable.wall_ns(), claim.of_line
                )
            except (Fenced, StorageError):
                return  # the archiver finds out and tells; the publisher asks again
            except SequenceGap as gap:
                self._refuse(asked, topic, lay.ACK_REFUSED, gap.expected)
                return
            except Conflict as problem:
                self.durable.tell(
                    ev.TopicConflict(topic=topic.config.name, node=setup.node, detail=str(problem))
                )
                return
            while len(self._opened) >= OPENED_MAX:
                self._forget(next(iter(self._opened)))
            now_s = self.node.clock_ns() / 1e9
            opened = _Opened(topic.config.name, session, now_s, claim.left)
            self._opened[setup.session] = opened
        self._give_up(setup.session)
        found = opened.session
        self.answer(asked.runtime, setup, block, topic, found.epoch, found.first_seq, lay.ACK_OK)

    def _refuse(self, asked: _Asked, topic: DurableTopic, state: int, first_seq: int) -> None:
        self._give_up(asked.setup.session)
        newest = max(topic.producers.known[asked.block.id].epoch, 1)
        self.answer(asked.runtime, asked.setup, asked.block, topic, newest, first_seq, state)

    def _tell_overtaken(self, topic: DurableTopic, claim: Claim) -> None:
        """Once a session, though its SETUPs may go on to come for a while."""
        if claim.session in self._overtaken:
            return
        while len(self._overtaken) >= OPENED_MAX:
            del self._overtaken[next(iter(self._overtaken))]
        self._overtaken[claim.session] = None
        self.durable.grants.tell_fenced(topic, claim.producer, claim.session, 0)

    def answer(
        self, runtime: TransportRuntime, setup: Setup, block: ProducerBlock, topic: DurableTopic,
        epoch: int, first_seq: int, state: int,
    ) -> None:  # fmt: skip
        """Answer a SETUP that gets no image."""
        answer = np.array(
            [setup.channel, setup.session, setup.topic_id, block.id, epoch, first_seq,
             block.packet, block.offset, block.count, state, topic.owner], dtype=np.int64,
        )  # fmt: skip
        a, b = setup.address_words
        words = runtime.inline_arguments[1]
        runtime.on_receiver(lambda: answer_setup(words, answer, a, b))

    def begin(self, topic: DurableTopic, setup: Setup, block: ProducerBlock) -> Session:
        """The session that a publisher's node goes on with."""
        opened = self._opened.pop(setup.session, None)
        if opened is not None and opened.session.epoch == block.epoch:
            return replace(opened.session, first_seq=block.first_seq)
        return topic.producers.resume(
            block.id, block.epoch, block.first_seq, self.durable.wall_ns(),
            block.line or setup.session,
        )  # fmt: skip

    def newest(self, topic: DurableTopic, producer: int, session: int, epoch: int) -> int:
        """The newest epoch of a producer, for one that says it has ``epoch``.

        An equal one of another session that is there is newer: it was granted twice by accident.
        """
        known = topic.producers.known.get(producer)
        if known is None:
            return 0
        sources = self.durable.sources.values()
        others = [s.epoch for s in sources if s.producer is known and s.session != session]
        others += [one.session.epoch for one in self.granted(known, session)]
        newer = max(others, default=0)
        return max(known.epoch, newer + (newer == epoch))

    def tick(self, now_s: float) -> None:
        """Forget what was granted and never begun."""
        for session in [s for s, o in self._opened.items() if now_s - o.at_s > OPENED_S]:
            self._forget(session)

    def _forget(self, session: int) -> None:
        opened = self._opened.pop(session)
        topic = self.durable.topics.get(opened.topic)
        if topic is not None:
            topic.producers.close(opened.session.producer, self.durable.wall_ns())
