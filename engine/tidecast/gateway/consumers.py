"""One durable consumer of a remote client, at the gateway: its member's ring, carried over.

The client holds a mirror of the ring. Deliveries go there as they lie, acks come here as they
lie; nothing is decoded, and the puller checks acks as it does any client's. The client gives back
room in the ring, so the ring, its credit in bytes, bounds the bytes that are under way.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Protocol

import numpy as np

from tidecast.api.link import ConsumerGrant
from tidecast.buffers import member_ring
from tidecast.client.kernels import remote as remote_kernels
from tidecast.client.remote import frames
from tidecast.client.remote.frames import BadFrame
from tidecast.errors import TidecastError
from tidecast.gateway.life import Session
from tidecast.layout import member as member_layout
from tidecast.native.mapped import MappedFile
from tidecast.native.memory import address

KEEP_S = 5.0
"""How long a member's place is kept for a client whose connection broke. Then others get its
records; a client that comes back later joins again."""
RING_BYTES_MAX = 64 << 20
TAKEN_BACK_MAX = 8192
"""Positions in one frame."""
_DELIVERIES_AT = member_layout.MEMBER_HEADER_BYTES
_IDLE_S, _FULL_S = 1.0, 0.005


class Joined(Session, Protocol):
    """The session of a consumer."""

    def give_up(self, consumer: RemoteConsumer) -> None:
        """The client of a consumer did not come back in time."""


class RemoteConsumer:
    """See the module. All methods run in the gateway's loop."""

    def __init__(self, session: Joined, number: int, grant: ConsumerGrant, ring_bytes: int) -> None:
        self.number, self.grant, self.ring_bytes = number, grant, ring_bytes
        self._session = session
        self._file = member_ring.MemberFile.open(Path(grant.ring_path))
        self._wakes = MappedFile.open(Path(grant.wakes_path)).array
        self._state = self._file.client_state()
        self._acks_read_sent = self._moved_sent = 0
        self._found = np.empty(TAKEN_BACK_MAX, dtype=np.int64)
        self._task: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def opened(self) -> frames.ConsumerOpened:
        """The answer to the client that opens the consumer."""
        grant, file = self.grant, self._file
        return frames.ConsumerOpened(
            deliveries_bytes=file.deliveries_bytes,
            acks_bytes=file.acks_bytes,
            ack_wait_s=grant.ack_wait_s,
            max_deliver=grant.max_deliver,
            dead_letter=grant.dead_letter,
            cursors=grant.cursors,
        )

    @property
    def _sent(self) -> int:
        return int(self._state[member_ring.K_POSITION])

    @_sent.setter
    def _sent(self, position: int) -> None:
        self._state[member_ring.K_POSITION] = position

    # --- coming and going -------------------------------------------------------------------------

    def resume(self, received: int) -> int:
        """Deliver from ``received`` on; up to where there are acks. Raises BadFrame."""
        ring = self._file.array
        released, delivered = (
            remote_kernels.word(ring, member_layout.MEM_RELEASED_AT),
            remote_kernels.word(ring, member_layout.MEM_DELIVERED_AT),
        )
        if not released <= received <= delivered:
            raise BadFrame(
                f"consumer {self.number}: received {received}: allowed {released} to {delivered}"
            )
        self.pause(None)
        self._sent = received
        self._acks_read_sent, self._moved_sent = 0, -1
        self._task = self._session.spawn(self._run())
        return int(remote_kernels.word(ring, member_layout.MEM_ACKED_AT))

    def pause(self, keep_s: float | None) -> None:
        """The client is gone; after ``keep_s`` (None: never) the member leaves."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if keep_s is not None:
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(keep_s, self._session.give_up, self)

    async def close(self) -> None:
        """Leave the subscription; acks count."""
        self.pause(None)
        link = self._session.connection.link
        with contextlib.suppress(TidecastError):
            await asyncio.to_thread(link.close_consumer, self.grant.consumer_id)

    # --- deliveries -------------------------------------------------------------------------------

    async def _run(self) -> None:
        connection = self._session.connection
        while True:
            if not await self._forward():
                pause_s = _FULL_S if self._acks_wait else _IDLE_S
                await connection.driver.ring(self._arm, pause_s)

    def _arm(self) -> int | None:
        ring, word = self._file.array, self._session.connection.bell.word
        if member_ring.arm_client(ring, self._state) and not self._file.detached:
            return None
        return (
            word
            if remote_kernels.word(ring, member_layout.MEM_MOVED_AT) == self._moved_sent
            else None
        )

    @property
    def _acks_wait(self) -> bool:
        """The client may have no room for acks until it learns how far they were read."""
        acked = remote_kernels.word(self._file.array, member_layout.MEM_ACKED_AT)
        return bool(acked - self._acks_read_sent > self._file.acks_bytes // 2)

    async def _forward(self) -> bool:
        """Send waiting deliveries. False: there are none."""
        for report in self.taken_back():
            await self._session.send(report)
        ring = self._file.array
        delivered = remote_kernels.word(ring, member_layout.MEM_DELIVERED_AT)
        acks_read = int(remote_kernels.word(ring, member_layout.MEM_ACKS_READ_AT))
        if self._sent == delivered:
            if not (self._acks_wait and acks_read > self._acks_read_sent):
                return False
            await self._send(0, acks_read, more=False)
        while self._sent < delivered:
            n = min(frames.DELIVERED_BYTES, delivered - self._sent)
            await self._send(n, acks_read, more=self._sent + n < delivered)
        return True

    def taken_back(self) -> list[frames.TakenBack]:
        """Which frames that were sent a seek took back; nothing, if that was reported.

        A seek is reported even if there are none: a client may keep records of before.
        """
        ring, found = self._file.array, []
        moved = int(remote_kernels.word(ring, member_layout.MEM_MOVED_AT))
        first, n = int(remote_kernels.word(ring, member_layout.MEM_RELEASED_AT)), TAKEN_BACK_MAX
        while moved != self._moved_sent and n == TAKEN_BACK_MAX:
            n, first = remote_kernels.taken_back(
                ring, self._file.deliveries_bytes, first, self._sent, self._found
            )
            positions = self._found[:n].tolist()
            found.append(frames.TakenBack(number=self.number, positions=positions))
        self._moved_sent = moved
        return found

    async def _send(self, n: int, acks_read: int, *, more: bool) -> None:
        ring, size, position = self._file.array, self._file.deliveries_bytes, self._sent
        body = np.empty(n, dtype=np.uint8)
        remote_kernels.mirror_out(ring, _DELIVERIES_AT, size, position, body)
        self._sent, self._acks_read_sent = position + n, acks_read
        await self._session.send(
            frames.Delivered(number=self.number, position=position, acks_read=acks_read, more=more),
            body,
        )

    # --- acks -------------------------------------------------------------------------------------

    def take_acks(self, frame: frames.Acks, body: memoryview) -> None:
        """Take acks, positions and returned room of the client. Raises BadFrame."""
        ring, n = self._file.array, body.nbytes
        acked, acks_read = (
            remote_kernels.word(ring, member_layout.MEM_ACKED_AT),
            remote_kernels.word(ring, member_layout.MEM_ACKS_READ_AT),
        )
        room = self._file.acks_bytes - (acked - acks_read)
        if frame.position != acked or n % 8 or n > room:
            raise BadFrame(
                f"consumer {self.number}: {n} bytes of acks at {frame.position}: due is {acked}, "
                f"with {room} bytes of room"
            )
        released = remote_kernels.word(ring, member_layout.MEM_RELEASED_AT)
        if not released <= frame.released <= self._sent or frame.released % 8:
            raise BadFrame(
                f"consumer {self.number}: released {frame.released}: {released} to {self._sent}"
            )
        if frame.taken > self._sent:
            raise BadFrame(f"consumer {self.number}: taken {frame.taken}: at most {self._sent}")
        if n:
            data, size = np.frombuffer(body, dtype=np.uint8), self._file.acks_bytes
            base = _DELIVERIES_AT + self._file.deliveries_bytes
            remote_kernels.mirror_in(ring, base, size, acked, address(data), n)
            remote_kernels.set_word(ring, member_layout.MEM_ACKED_AT, acked + n)
        if frame.taken > remote_kernels.word(ring, member_layout.MEM_TAKEN_AT):
            remote_kernels.set_word(ring, member_layout.MEM_TAKEN_AT, frame.taken)
        remote_kernels.set_word(ring, member_layout.MEM_RELEASED_AT, frame.released)
        bells = self._session.connection.link.bells
        member_ring.wake_member(self._wakes, bells, self.grant.member)
        if self._acks_wait:
            self._session.connection.bell.ring()  # look for acked records, soon and again
