"""Durable consumers of a remote client: replicas of their members' rings. See docs/GATEWAY.md.

The engine's host has the member's file; this host has a second one, of the same size. Bytes of
deliveries come from there, bytes of acks go there, each to the same position. So the consumer is
that of local clients, and its credit too: no more is on its way than the ring takes and
``max_in_flight`` allows.

A member outlives a broken connection for a few seconds. When it comes back in time, deliveries
and acks resume where they were. Else the link joins the subscription again; the consumer resumes
in a new file: records that it had and did not ack come again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tidecast.api.frames.common import Frame
from tidecast.api.link import ConsumerGrant, ConsumerOptions
from tidecast.buffers.member_ring import MemberFile
from tidecast.client.kernels import remote as remote_kernels
from tidecast.client.remote import frames
from tidecast.client.remote.frames import BadFrame
from tidecast.client.remote.rings import RingDirectory
from tidecast.errors import ConnectionLost, TidecastError
from tidecast.events import ConsumerExpelled, ConsumerRejoined
from tidecast.layout import member as member_layout
from tidecast.native.mapped import MappedFile
from tidecast.native.memory import address
from tidecast.native.packing import pack_into

_DELIVERIES_AT = member_layout.MEMBER_HEADER_BYTES


class ReplicaRing:
    """One consumer. The link's reader calls `delivered`; the sending thread calls `next_frame`."""

    def __init__(self, number: int, pattern: str, name: str, options: ConsumerOptions) -> None:
        self.number, self.pattern, self.name, self.options = number, pattern, name, options
        self.ready = False
        """The gateway delivers and takes acks."""
        self.answered = threading.Event()
        """Not set until the gateway answers `ResumeConsumer`; deliveries may come before."""
        self.received = self._sent = self._taken = self._released = 0

    def open(self, home: RingDirectory, path: Path, opened: frames.ConsumerOpened) -> None:
        """Begin with an empty ring. Raises ConfigError for sizes that cannot be."""
        self.file = MemberFile.create(
            path, opened.deliveries_bytes, opened.acks_bytes, member=0, bell=home.client_line
        )
        self.opened, self._bells, self._line = opened, home.bells, home.client_line
        self._acks_at = _DELIVERIES_AT + opened.deliveries_bytes
        self.received = self._sent = self._taken = self._released = 0

    def opening(self, question: int) -> frames.OpenConsumer:
        """The question for a member."""
        return frames.OpenConsumer(
            id=question,
            number=self.number,
            pattern=self.pattern,
            name=self.name,
            options=self.options,
        )

    def expelled(self, reason: str) -> ConsumerExpelled:
        """It cannot continue."""
        return ConsumerExpelled(
            topic=self.pattern, subscription=self.name, consumer_id=self.number, reason=reason
        )

    def grant(self, wakes: Path) -> ConsumerGrant:
        """The grant of the consumer."""
        opened = self.opened
        return ConsumerGrant(
            consumer_id=self.number,
            member=0,
            ring_path=str(self.file.mapped.path),
            wakes_path=str(wakes),
            pattern=self.pattern,
            name=self.name,
            ack_wait_s=opened.ack_wait_s,
            max_deliver=opened.max_deliver,
            dead_letter=opened.dead_letter,
            cursors=opened.cursors,
        )

    def delivered(self, frame: frames.Delivered, body: memoryview) -> None:
        """Put deliveries where they belong. Raises BadFrame."""
        ring, size, n = self.file.array, self.file.deliveries_bytes, body.nbytes
        acks_read = remote_kernels.word(ring, member_layout.MEM_ACKS_READ_AT)
        if not acks_read <= frame.acks_read <= self._sent:
            raise BadFrame(
                f"consumer {self.number}: acks read to {frame.acks_read}: was {acks_read}"
            )
        remote_kernels.set_word(ring, member_layout.MEM_ACKS_READ_AT, frame.acks_read)
        released = remote_kernels.word(ring, member_layout.MEM_RELEASED_AT)
        if n == 0:
            return
        if frame.position != self.received or frame.position + n - released > size:
            raise BadFrame(
                f"consumer {self.number}: {n} bytes at {frame.position}: due is {self.received}, "
                f"with {size - (self.received - released)} bytes of room"
            )
        data = np.frombuffer(body, dtype=np.uint8)
        remote_kernels.mirror_in(ring, _DELIVERIES_AT, size, frame.position, address(data), n)
        self.received += n
        if not frame.more:
            remote_kernels.set_word(ring, member_layout.MEM_DELIVERED_AT, self.received)
            remote_kernels.wake_if_armed(ring, member_layout.MEM_ARMED_AT, self._bells, self._line)

    def taken_back(self, frame: frames.TakenBack) -> None:
        """Frames here are not for this consumer any more. Raises BadFrame."""
        ring, size = self.file.array, self.file.deliveries_bytes
        positions = np.array(frame.positions, dtype=np.int64)
        if ((positions < 0) | (positions >= self.received) | (positions % 8 != 0)).any():
            raise BadFrame(
                f"consumer {self.number}: frames at {positions.min()} to {positions.max()}: "
                f"received are {self.received} bytes"
            )
        released = remote_kernels.word(ring, member_layout.MEM_RELEASED_AT)
        remote_kernels.take_back_at(ring, size, positions[positions >= released])
        remote_kernels.wake_if_armed(ring, member_layout.MEM_ARMED_AT, self._bells, self._line)

    @property
    def changed(self) -> bool:
        """There is something to tell the gateway."""
        if not self.ready:
            return False
        ring = self.file.array
        return bool(
            remote_kernels.word(ring, member_layout.MEM_ACKED_AT) != self._sent
            or remote_kernels.word(ring, member_layout.MEM_TAKEN_AT) != self._taken
            or remote_kernels.word(ring, member_layout.MEM_RELEASED_AT) != self._released
        )

    def next_frame(self) -> bytes | None:
        """The next frame for the gateway; None: it knows all."""
        if not self.changed:
            return None
        ring = self.file.array
        acked = remote_kernels.word(ring, member_layout.MEM_ACKED_AT)
        self._taken = remote_kernels.word(ring, member_layout.MEM_TAKEN_AT)
        self._released = remote_kernels.word(ring, member_layout.MEM_RELEASED_AT)
        body = np.empty(acked - self._sent, dtype=np.uint8)
        remote_kernels.mirror_out(ring, self._acks_at, self.file.acks_bytes, self._sent, body)
        frame = frames.Acks(
            number=self.number, taken=self._taken, released=self._released, position=self._sent
        )
        self._sent = acked
        return frames.encode(frame, body)

    def resume(self, acked: int) -> None:
        """Resume; the gateway has acks up to ``acked``. Raises BadFrame."""
        ring = self.file.array
        acks_read, written = (
            remote_kernels.word(ring, member_layout.MEM_ACKS_READ_AT),
            remote_kernels.word(ring, member_layout.MEM_ACKED_AT),
        )
        if not acks_read <= acked <= written:
            raise BadFrame(f"consumer {self.number}: acks to {acked}: {acks_read} to {written}")
        self._sent, self._taken, self._released = acked, -1, -1
        self.ready = True
        self.answered.set()

    def pause(self) -> None:
        """The gateway takes no acks: its connection is lost, or it refused."""
        self.ready = False
        self.answered.set()

    def close(self) -> None:
        """Free the file; a reader that still maps it keeps it."""
        self.pause()
        self.file.mapped.unlink()


class RemoteConsumers:
    """All consumers of a link.

    ``ask(make, kind)`` waits for an answer; ``ask_then(make, kind, then)`` does not: the answer, or
    its error, is given to ``then`` by the link's reader.
    """

    def __init__(
        self,
        home: RingDirectory,
        push: Callable[..., None],
        ask: Callable[[Callable[[int], Frame], Any], Any],
        ask_then: Callable[[Callable[[int], Frame], Any, Callable[[Any], None]], None],
        hang_up: Callable[[], None],
    ) -> None:
        self._home, self._push, self._ask, self._ask_then = home, push, ask, ask_then
        self._hang_up = hang_up
        self._lock = threading.Lock()
        self._files = 0
        self.replicas: dict[int, ReplicaRing] = {}
        self._wakes = MappedFile.create(home.directory / "wakes", member_layout.WAKES_BYTES)
        pack_into("<q", self._wakes.array, member_layout.WAKE_BELL_AT, home.pump_line)

    def open(self, number: int, pattern: str, name: str, options: ConsumerOptions) -> ConsumerGrant:
        """Join a subscription. Raises the gateway's error, ConnectionLost, Timeout."""
        replica = ReplicaRing(number, pattern, name, options)
        return self._opened(replica, self._ask(replica.opening, frames.ConsumerOpened))

    def close(self, number: int) -> None:
        """Leave it. Raises as `open`."""
        replica = self.replicas.pop(number, None)
        if replica is not None:
            replica.close()
            self._ask(lambda question: frames.CloseConsumer(id=question, number=number), None)

    def _opened(self, replica: ReplicaRing, opened: frames.ConsumerOpened) -> ConsumerGrant:
        """The gateway has a member for it: make its replica, and let deliveries come."""
        with self._lock:
            self._files += 1
            path = self._home.directory / f"member-{self._files}"
            replica.open(self._home, path, opened)
            self.replicas[replica.number] = replica
        self.resume(replica)
        return replica.grant(self._wakes.path)

    def resume(self, replica: ReplicaRing) -> None:
        """Ask for the deliveries that follow; a member that is gone is recreated."""

        def answered(answer: Any) -> None:
            if isinstance(answer, TidecastError):
                if answer.code == "not_found":
                    self._join(replica)
                else:
                    self._refused(replica, answer)
                return
            try:
                replica.resume(answer)
            except BadFrame:
                self._join(replica)

        replica.ready = False
        replica.answered.clear()
        self._ask_then(
            lambda number: frames.ResumeConsumer(
                id=number, number=replica.number, received=replica.received
            ),
            int,
            answered,
        )

    def _join(self, replica: ReplicaRing) -> None:
        """The gateway has forgotten it: join the subscription again."""

        def answered(answer: Any) -> None:
            if isinstance(answer, TidecastError):
                self._refused(replica, answer)
                return
            if self.replicas.get(replica.number) is not replica:
                return  # closed meanwhile
            replica.close()
            self._opened(replica, answer)
            self._push(
                ConsumerRejoined(
                    topic=replica.pattern, subscription=replica.name, consumer_id=replica.number
                )
            )

        self._ask_then(replica.opening, frames.ConsumerOpened, answered)

    def _refused(self, replica: ReplicaRing, problem: TidecastError) -> None:
        """Another connection is another try, if trying again can help."""
        replica.pause()
        if not problem.retryable:
            self._push(replica.expelled(str(problem)))
        elif not isinstance(problem, ConnectionLost):
            self._hang_up()

    def grant_of(self, number: int) -> ConsumerGrant:
        """The grant of a consumer that joined again."""
        return self.replicas[number].grant(self._wakes.path)

    def received(self, frame: frames.Delivered | frames.TakenBack, body: memoryview) -> None:
        """Deliveries came, or the gateway takes some back. Raises BadFrame."""
        replica = self.replicas.get(frame.number)
        if replica is None:
            return
        if isinstance(frame, frames.Delivered):
            replica.delivered(frame, body)
        else:
            replica.taken_back(frame)

    def pause(self) -> None:
        """The connection is lost."""
        for replica in list(self.replicas.values()):
            replica.pause()

    def arm(self) -> bool:
        """Ask for the pump's doorbell. True: there is something to send already."""
        if not self.replicas:
            return False
        remote_kernels.arm_word(self._wakes.array, member_layout.WAKE_ARMED_AT)
        return any(replica.changed for replica in list(self.replicas.values()))
