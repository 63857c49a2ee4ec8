"""One publication of a remote client, at the gateway: batches in order, and how far durable."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from functools import partial

from tidecast.api.operations import failure_of_any
from tidecast.client.aio import Publisher
from tidecast.client.core.producer import ProducerSession
from tidecast.client.remote import frames
from tidecast.client.remote.frames import BadFrame, Block
from tidecast.client.waiting import Bell
from tidecast.errors import PayloadTooLarge, TidecastError
from tidecast.gateway.life import Session
from tidecast.gateway.requests import check_block

CLOSE_TIMEOUT_S = 5.0
_PAUSE_MIN_S, _PAUSE_MAX_S = 100e-6, 5e-3
_SENT_PAUSE_MAX_S = 20e-3
"""How late the client of a topic that is held back learns that batches were sent."""
_ACK_SLICE_S = 0.1


def _arm(bell: Bell, session: ProducerSession, seq: int) -> int | None:
    word = bell.word
    return word if session.arm() <= seq else None


class RemotePublication:
    """A remote publisher: batches in order, each into the ring of the node, then confirmed.

    Its client keeps each batch until it is durable, or, on a live topic, was sent to other nodes:
    a ring ends with its engine.
    """

    def __init__(self, session: Session, core: Publisher, opening: frames.OpenPublication) -> None:
        self.core, self.number, self.accepted = core, opening.number, opening.first - 1
        self._session = session
        self._queue: deque[tuple[int, Block]] = deque()
        self.queued_bytes = 0
        self._held, self._wake, self._drained = False, asyncio.Event(), asyncio.Event()
        self._unsent: deque[tuple[int, int]] = deque()
        """(batch, the packet behind its last one), of batches that were not sent."""
        self._sent, self._appended = self.accepted, asyncio.Event()
        self.task = session.spawn(self._run())
        self._reports: asyncio.Task[None] | None = None
        durable = core.producer_session
        self.reports_sent = opening.keeps_unsent and durable is None and core.has_network
        if durable is not None:
            self._reports = session.spawn(self._report_durable(durable))
        elif self.reports_sent:
            self._reports = session.spawn(self._report_sent())

    def offer(self, frame: frames.Publish, body: memoryview) -> None:
        """Queue a batch; a repeated batch is not taken again. Raises BadFrame."""
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
                while self._queue and not self._held:
                    await self._append_first()
                self._wake.clear()
                self._drained.set()
                await self._wake.wait()
        except Exception as problem:  # noqa: BLE001 - reported to the client, whatever it is
            self._drained.set()
            failure = failure_of_any(problem, "gateway")
            await self._session.send(
                frames.Ended(number=self.number, publication=True, failure=failure)
            )

    async def _append_first(self) -> None:
        receiver, block = self._queue[0]
        allowed, pause_s = self._allowed(receiver, block), _PAUSE_MIN_S
        while allowed is not None and not self._attempt(allowed, receiver):
            if self._held:
                return  # its client has it still
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _PAUSE_MAX_S)
        self._queue.popleft()
        self.queued_bytes -= block.nbytes
        self._session.queued_bytes -= block.nbytes
        self.accepted += 1
        if self.reports_sent:
            self._note_unsent()
        await self._session.send(frames.Accepted(number=self.number, batch=self.accepted))

    def _allowed(self, receiver: int, block: Block) -> Block | None:
        """The part of a block that may be published. Raises ConfigError, AuthError."""
        topic, session = self.core.topic, self._session
        node_id = session.connection.link.node_id
        left_out = check_block(topic, receiver, block, node_id, session.reply_homes())
        if not left_out:
            return block
        session.deny("publish", topic)
        return block.without(left_out)

    def _attempt(self, block: Block, receiver: int) -> bool:
        with self.core.lock:
            port = self.core.port_for_kernel()
            status = frames.FULL if port is None else block.put(port, receiver)
        if status == frames.TOO_LARGE:
            raise PayloadTooLarge(f"topic {self.core.topic}: {block.longest} bytes are too many")
        return status == 0

    def _note_unsent(self) -> None:
        end = self.core.packets
        if self._unsent and self._unsent[-1][1] == end:
            self._unsent.pop()
        self._unsent.append((self.accepted, end))
        self._appended.set()

    async def _report_sent(self) -> None:
        while True:
            self._appended.clear()
            pause_s = _PAUSE_MIN_S
            while self._unsent:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 1.5, _SENT_PAUSE_MAX_S)
                if self._take_sent():
                    await self.report()
                    pause_s = _PAUSE_MIN_S
            await self._appended.wait()

    def _take_sent(self) -> bool:
        """Have batches been sent since the last look?"""
        sent, before = self.core.sent_packets, self._sent
        while self._unsent and self._unsent[0][1] <= sent:
            self._sent, _ = self._unsent.popleft()
        return self._sent != before

    async def settle(self) -> None:
        """The engine stops: accept no more, and report the batches of the rest that were sent.

        The client has all unreported batches, and offers them to the next engine.
        """
        self._held = True
        if self.reports_sent:
            with contextlib.suppress(TidecastError):
                self._session.connection.link.keep_publication(self.core.publication_id)
        while self.reports_sent and self._unsent:
            await asyncio.sleep(_PAUSE_MAX_S)
            self._take_sent()
        await self.report()

    async def _report_durable(self, session: ProducerSession) -> None:
        connection, reported = self._session.connection, (session.first_seq - 1, 0)
        while True:
            now = session.durable_seq, session.state
            if now != reported:
                reported = now
                await self.report()
            await connection.driver.ring(
                partial(_arm, connection.bell, session, now[0]), _ACK_SLICE_S
            )

    async def report(self) -> None:
        """Report how far it is durable, or sent, if its client keeps the rest."""
        session = self.core.producer_session
        if self.reports_sent:
            await self._session.send(frames.Sent(number=self.number, batch=self._sent))
        elif session is not None:
            await self._session.send(
                frames.Durable(number=self.number, seq=session.durable_seq, state=session.state)
            )

    async def close(self) -> None:
        """The queued messages get their chance; then the publication ends."""
        if self._reports is not None:
            self._reports.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._drained.wait()
        self._session.queued_bytes -= self.queued_bytes
        self.task.cancel()
        with contextlib.suppress(TidecastError):
            await self.core.close(CLOSE_TIMEOUT_S)
