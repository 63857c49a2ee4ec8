"""One publication of a remote client, at the gateway: batches in order, and how far durable."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from tidecast.client.aio import Publisher
from tidecast.client.core.producer import ProducerSession
from tidecast.client.remote import frames
from tidecast.client.remote.frames import BadFrame, Block
from tidecast.client.waiting import Bell
from tidecast.errors import PayloadTooLarge, TidecastError
from tidecast.gateway.failures import failure_of_any
from tidecast.gateway.requests import check_block

if TYPE_CHECKING:
    from tidecast.gateway.session import RemoteSession

CLOSE_TIMEOUT_S = 5.0
_PAUSE_MIN_S, _PAUSE_MAX_S = 100e-6, 5e-3
_ACK_SLICE_S = 0.1


def _arm(bell: Bell, session: ProducerSession, seq: int) -> int | None:
    word = bell.word
    return word if session.arm() <= seq else None


class RemotePublication:
    """A remote publisher: batches in order, each into the ring of the node, then confirmed."""

    def __init__(self, session: RemoteSession, number: int, core: Publisher, first: int) -> None:
        self.core, self.number, self.accepted = core, number, first - 1
        self._session = session
        self._queue: deque[tuple[int, Block]] = deque()
        self.queued_bytes = 0
        self._wake, self._drained = asyncio.Event(), asyncio.Event()
        self.task = session.spawn(self._run())
        self._acks: asyncio.Task[None] | None = None
        if core.producer_session is not None:
            self._acks = session.spawn(self._report_durable(core.producer_session))

    def offer(self, frame: frames.Publish, body: memoryview) -> None:
        """Queue a batch; one that was here before is not taken again. Raises BadFrame."""
        due = self.accepted + len(self._queue) + 1
        if frame.batch < due:
            return
        if frame.batch > due:
            raise BadFrame(f"publication {self.number}: batch {frame.batch}: due is {due}")
        if (
            self.queued_bytes >= frames.PUBLISH_WINDOW_BYTES
            or self._session.queued_bytes >= frames.SESSION_WINDOW_BYTES
        ):
            raise BadFrame(f"publication {self.number}: more under way than the window allows")
        block = Block.parse(frame.n, frame.mixed, body)
        self.queued_bytes += block.nbytes
        self._session.queued_bytes += block.nbytes
        self._queue.append((frame.receiver, block))
        self._drained.clear()
        self._wake.set()

    async def _run(self) -> None:
        try:
            while True:
                while self._queue:
                    await self._append_first()
                self._wake.clear()
                self._drained.set()
                await self._wake.wait()
        except Exception as problem:  # noqa: BLE001 - the client is told, whatever it is
            self._drained.set()
            failure = failure_of_any(problem)
            await self._session.send(
                frames.Ended(number=self.number, publication=True, failure=failure)
            )

    async def _append_first(self) -> None:
        receiver, block = self._queue[0]
        session = self._session
        node_id = session.connection.link.node_id
        check_block(self.core.topic, receiver, block, node_id, session.reply_homes())
        pause_s = _PAUSE_MIN_S
        while not self._attempt(block, receiver):
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _PAUSE_MAX_S)
        self._queue.popleft()
        self.queued_bytes -= block.nbytes
        self._session.queued_bytes -= block.nbytes
        self.accepted += 1
        await self._session.send(frames.Accepted(number=self.number, batch=self.accepted))

    def _attempt(self, block: Block, receiver: int) -> bool:
        with self.core.lock:
            port = self.core.port_for_kernel()
            status = frames.FULL if port is None else block.put(port, receiver)
        if status == frames.TOO_LARGE:
            raise PayloadTooLarge(f"topic {self.core.topic}: {block.longest} bytes are too many")
        return status == 0

    async def _report_durable(self, session: ProducerSession) -> None:
        connection, reported = self._session.connection, (session.first_seq - 1, 0)
        while True:
            now = session.durable_seq, session.state
            if now != reported:
                reported = now
                await self.report_durable()
            await connection.driver.ring(
                partial(_arm, connection.bell, session, now[0]), _ACK_SLICE_S
            )

    async def report_durable(self) -> None:
        """Say how far it is durable, if the topic is."""
        session = self.core.producer_session
        if session is not None:
            await self._session.send(
                frames.Durable(number=self.number, seq=session.durable_seq, state=session.state)
            )

    async def close(self) -> None:
        """What is queued gets its chance; then the publication ends."""
        if self._acks is not None:
            self._acks.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._drained.wait()
        self._session.queued_bytes -= self.queued_bytes
        self.task.cancel()
        with contextlib.suppress(TidecastError):
            await self.core.close(CLOSE_TIMEOUT_S)
