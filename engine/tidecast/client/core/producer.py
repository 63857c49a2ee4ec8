"""Durable publishing, the part that never waits: sequences, receipts, resuming after a crash.

A durable publisher's messages have sequences, contiguous from `first_seq`. They cost nothing: the
engine counts the messages of the ring, as the publisher does. "Durable up to here" is one word in
the ring. When the engine dies, the old ring still has the messages that are not durable; they move
to the new ring, with the same sequences, before any other message is appended.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from typing import Any, Protocol, get_args

import msgspec
import numpy as np

from tidecast.api.link import PublicationGrant, PublicationOptions
from tidecast.api.words import Ack
from tidecast.buffers import writer
from tidecast.buffers.ring_file import describe
from tidecast.client.core.outgoing import reject
from tidecast.client.kernels import durable as durable_kernels
from tidecast.client.kernels import ports
from tidecast.client.waiting import Deadline, InlinePace
from tidecast.errors import (
    Closed,
    ConfigError,
    SequenceGap,
    StorageError,
    TidecastError,
    Timeout,
    fenced,
)
from tidecast.layout import ring as ring_layout
from tidecast.native.mapped import Bytes, MappedFile

ACKS = get_args(Ack)
OPEN_TIMEOUT_S = 15.0
"""Longer than an owner waits for an older session's ring (`image_timeout_s`, 10 s)."""
_SLICE_S = 0.1


class Move:
    """The messages of an old ring that are not durable, on their way into a new ring."""

    def __init__(self, mapped: MappedFile, ring: Bytes) -> None:
        about = describe(ring)
        self._mapped, self._ring = mapped, ring
        self._state = np.zeros(durable_kernels.MOVE_FIELDS, dtype=np.int64)
        self._state[durable_kernels.V_SLOTS], self._state[durable_kernels.V_SLOT_BYTES] = (
            about.slots,
            about.slot_bytes,
        )
        self._state[durable_kernels.V_SLOTS_AT] = ring_layout.slots_at(about.slots)
        self._assembly = np.zeros(1, dtype=np.uint8)
        self.durable = int(durable_kernels.begin_move(ring, self._state))
        """Messages of the old ring that were durable."""

    def step(self, port: ports.Port) -> bool:
        """Move as much as there is room for. True: all is moved."""
        while True:
            status = int(
                durable_kernels.move_messages(self._ring, self._state, port, self._assembly)
            )
            if status == durable_kernels.NEED:
                self._assembly = np.zeros(int(self._state[durable_kernels.V_NEED]), dtype=np.uint8)
                continue
            if status == durable_kernels.MOVED:
                self._ring = np.empty(0, dtype=np.uint8)
                self._mapped.close()
                return True
            return False


class Moves:
    """Rings of engines that died, one after the other, on their way into the newest ring."""

    def __init__(self) -> None:
        self._left: list[Move] = []

    def __bool__(self) -> bool:
        return bool(self._left)

    def begin(self, move: Move) -> None:
        """Move a ring: its messages stand before the rest of rings that were to be moved before."""
        self._left.insert(0, move)

    def step(self, port: ports.Port) -> bool:
        """Move as much as there is room for. True: all is moved."""
        while self._left:
            if not self._left[0].step(port):
                return False
            del self._left[0]
        return True


class ProducerSession:
    """The durable side of one publisher: which sequences its ring holds, how far it is durable."""

    def __init__(
        self, topic: str, grant: PublicationGrant, ring: Bytes, line: int = 0, after: int = 0
    ) -> None:
        self.topic, self.owner, self._ring = topic, grant.owner, ring
        self.producer_id, self._epoch = grant.producer_id, grant.epoch
        self.line, self._after = line or grant.session, after
        self._first_seq, self.acked_seq, self.last_seq = (
            grant.first_seq,
            grant.acked_seq,
            grant.last_seq,
        )

    @property
    def epoch(self) -> int:
        """The session's epoch; 0 until the topic's owner has answered."""
        self._epoch = self._epoch or self._word(ring_layout.EPOCH_AT)
        return self._epoch

    @property
    def newest_epoch(self) -> int:
        """The newest epoch that this publisher had, in this session or an earlier one."""
        return max(self.epoch, self._after)

    @property
    def first_seq(self) -> int:
        """Sequence of the ring's first message; 0 until the topic's owner has answered."""
        if not self._first_seq and self.epoch:
            self._first_seq = self._word(ring_layout.FIRST_SEQ_AT)
        return self._first_seq

    def _word(self, at: int) -> int:
        ring = self._ring  # another thread may detach it at any moment
        return int(ports.word_of(ring, at)) if ring.size else 0

    def detach(self) -> None:
        """The ring is about to be unmapped; the state of the session stays."""
        self.acked_seq = max(self.acked_seq, self.durable_seq)
        self._ring = np.empty(0, dtype=np.uint8)

    @property
    def durable_seq(self) -> int:
        """All of this session up to here is durable."""
        ring = self._ring
        if not ring.size:
            return self.acked_seq
        return max(self.first_seq - 1, 0) + int(durable_kernels.durable_count(ring))

    @property
    def state(self) -> int:
        """0, errno of a disk that refuses, or ACK_* of a session that is over."""
        ring = self._ring
        return int(durable_kernels.ack_state(ring)) if ring.size else 0

    def problem(self, on_full: str) -> TidecastError | None:
        """Why no more may become durable: fenced, closed, or (``on_full="error"``) a full disk."""
        state = self.state
        if state == ring_layout.ACK_FENCED:
            return fenced(self.topic, self.epoch)
        if state == ring_layout.ACK_REFUSED:
            return gap(self.topic, self._word(ring_layout.FIRST_SEQ_AT))
        if state == ring_layout.ACK_ENDED and self.durable_seq < self.first_seq:
            return Closed(f"topic {self.topic}: it was deleted, or the publisher is closed")
        if state > 0 and on_full == "error":
            return refused(self.topic, state)
        return None

    def disk(self) -> TidecastError | None:
        """The error of a disk that refuses, if one does."""
        state = self.state
        return refused(self.topic, state) if state > 0 else None

    def arm(self) -> int:
        """Ask for the doorbell when more is durable; `durable_seq` now."""
        ring = self._ring
        if not ring.size:
            return self.acked_seq
        return self.first_seq - 1 + int(durable_kernels.arm_ack(ring))


def gap(topic: str, due: int) -> SequenceGap:
    """The error for a session that the topic's owner has refused."""
    return SequenceGap(
        f"topic {topic}: first_seq: {due} is due: sequences of a producer have no gaps", due
    )


def refused(topic: str, number: int) -> StorageError:
    """The error for a disk that is full or broken, or an owner without memory or out of reach."""
    if number == errno.EHOSTUNREACH:
        return StorageError(
            f"topic {topic}: another node keeps its queues, and its transport reaches no other "
            "node; what is not durable waits in the publisher's ring until this engine has the "
            "lease: give the topic a transport of kind udp-..., or publish at the node that has "
            f"it (tidecast queue list {topic} says which)",
            number,
        )
    if number == errno.ENOMEM:
        return StorageError(
            f"topic {topic}: the node that keeps it has no memory for a ring of this publisher "
            "now; what is not durable waits in the publisher's ring and is sent as soon as there "
            "is room: close publishers there, or raise node.publisher_rings_bytes_max in that "
            "node's topology",
            number,
        )
    return StorageError(
        f"topic {topic}: the engine's disk takes no more: {os.strerror(number)}; what is not "
        "durable waits in the publisher's ring; the engine resumes by itself: free space there, or "
        "let it delete (tidecast topic edit --retention-bytes)",
        number,
    )


def continued(
    options: PublicationOptions, session: ProducerSession, durable: int
) -> PublicationOptions:
    """Options to resume a session whose engine died when ``durable`` messages were durable."""
    return msgspec.structs.replace(
        options,
        producer_id=session.producer_id,
        first_seq=session.first_seq + durable,
        line=session.line,
        after=session.newest_epoch,
    )


def await_session(connection: Any, session: ProducerSession) -> None:
    """Wait until a session's first sequence is known. Raises Timeout, SequenceGap, Fenced.

    It is unless the producer has a name, gave no ``first_seq``, and another node keeps the topic.
    """
    pace, link = InlinePace(), connection.link
    deadline = Deadline(OPEN_TIMEOUT_S, link.now_s)
    while session.first_seq == 0:
        problem = session.problem("error")
        if problem is not None:
            raise problem
        if deadline.passed:
            who = "the engine" if session.owner == "*" else f"node {session.owner}"
            raise Timeout(
                f"topic {session.topic}: {who} that keeps its queues does not begin "
                f"the session within {OPEN_TIMEOUT_S:g} s: see that it runs, that transports "
                "and peers lead there (tidecast doctor), and the same of the node where this "
                "producer was before: it may hold messages that are not acked"
            )
        if link.inline:
            connection.bell.wait(connection.bell.word, pace.pause_s(link.work()))
            continue
        word = connection.bell.word
        session.arm()
        if session.first_seq == 0:
            connection.bell.wait(word, deadline.left_s(_SLICE_S))


def messages_in(port: ports.Port) -> int:
    """Messages that were appended through a port."""
    return int(port[writer.W_MESSAGES])


def of_live_topic(topic: str, options: PublicationOptions) -> ConfigError:
    """For a producer's name or first sequence on a live topic, which keeps neither."""
    name = (
        f"producer: {options.producer!r}"
        if options.producer
        else (f"first_seq: {options.first_seq}")
    )
    return ConfigError(
        f"{name}: topic {topic} is live: no sequences of producers are kept: leave it out, or make "
        "the topic durable (tidecast topic create NAME --mode durable)"
    )


class Acked(Protocol):
    """A publisher whose messages may be acked by the disk."""

    @property
    def topic(self) -> str:
        """Name of the topic."""

    @property
    def producer_session(self) -> ProducerSession | None:
        """The session, if the topic is durable."""


def check_ack(publisher: Acked, ack: str) -> bool:
    """Is the disk to be waited for? Raises ConfigError unless ``ack`` can be had of this publisher.

    ``none``, ``engine``: a message is the engine's as soon as its ring has it.
    """
    if ack not in ACKS:
        raise reject("ack", ack, f"are {', '.join(ACKS)}")
    if ack != "durable":
        return False
    if publisher.producer_session is None:
        raise ConfigError(
            f"ack: {ack!r}: topic {publisher.topic} is live, nothing of it is kept: make it "
            "durable (tidecast topic create NAME --mode durable)"
        )
    return True


class Receipt:
    """Up to one message: is it durable? Await it, or call the publisher's `wait_durable`."""

    __slots__ = ("_publisher", "seq")

    def __init__(self, publisher: Any, seq: int) -> None:
        self._publisher, self.seq = publisher, seq

    @property
    def done(self) -> bool:
        """This message, and all before it, are durable."""
        return bool(self._publisher.durable_position >= self.seq)

    def wait(self, timeout: float | None = None) -> int:
        """Blocking client: wait for it; the sequence. Raises Timeout, Fenced, StorageError."""
        position: int = self._publisher.wait_durable(self.seq, timeout)
        return position

    def __await__(self) -> Generator[Any, None, int]:
        found: Generator[Any, None, int] = self._publisher.wait_durable(self.seq).__await__()
        return found
