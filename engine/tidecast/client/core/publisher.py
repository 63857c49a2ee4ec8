"""Publishing, the part that never waits: steps that append, or report a full ring.

The blocking and the asyncio publisher add the waiting. Messages of one thread keep their order,
whatever mixture of calls it makes; calls from several threads are safe.

Each message is handed to the kernel at once: a call with `bytes` and nothing else goes there
without a line of Python (`fast_publish`), all others come by the methods here. A publisher that was
made with ``buffer=True`` collects plain messages in a list when calls come faster than one in
20 us, and hands up to 512 of them over at a time, at the latest after the linger time (`Flusher`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import msgspec
import numpy as np

from tidecast import codecs
from tidecast.api.link import Continued, PublicationGrant, PublicationOptions
from tidecast.api.words import OnFull
from tidecast.buffers import writer
from tidecast.buffers.ring_file import copy_packets, describe, messages_between, tethered_readers
from tidecast.client.columns.batch import Optional, Scheduling, batch_runs
from tidecast.client.core import metadata, producer
from tidecast.client.core.errors import (
    beyond_link,
    mapping,
    rate_limited,
    ring_full,
    too_large,
    too_much_meta,
)
from tidecast.client.core.metadata import Headers
from tidecast.client.core.outgoing import (
    Outgoing,
    PublisherStats,
    Run,
    check_text,
    list_run,
    no_text,
    payload_bytes,
    reject,
)
from tidecast.client.kernels import ports
from tidecast.client.kernels.batches import CODES, list_append_fn
from tidecast.client.kernels.objects import fast_publish
from tidecast.client.waiting import flush_after_s
from tidecast.errors import (
    Closed,
    ConfigError,
    ConnectionLost,
    ForkedProcess,
    NoResponders,
    PayloadTooLarge,
    TidecastError,
    Timeout,
)
from tidecast.events import MessagesDropped, MessagesUnsent
from tidecast.layout import packet as wire
from tidecast.layout import ring as ring_layout
from tidecast.native.mapped import MappedFile
from tidecast.native.memory import address

if TYPE_CHECKING:
    from tidecast.client.core.connection import ConnectionCore

ON_FULL = get_args(OnFull)
COLLECTED_MAX = 512
"""Messages that may be collected before they are passed to the kernel."""
SMALL_BYTES_MAX = 2048
"""Longer payloads are never collected: a call costs less than their copy."""
_BURST_GAP_NS, _BURST_CALLS = 20_000, 32


class PublisherCore:
    """One publication. See the module; made by `Connection.publisher`."""

    _FAST: ClassVar[dict[str, object]] = {"try_publish": True}
    """The result of plain calls of a method that take the short way."""

    def __init__(
        self,
        connection: ConnectionCore,
        topic: str,
        options: PublicationOptions,
        *,
        on_full: str | None = None,
        codec: codecs.Codec | str | None = None,
        buffer: bool = False,
    ) -> None:
        if on_full is not None and on_full not in ON_FULL:
            raise reject("on_full", on_full, f"are {', '.join(ON_FULL)}")
        check_text("topic", topic)
        if options.channel not in wire.CHANNEL_NAMES:
            raise reject("channel", options.channel, f"are {', '.join(wire.CHANNEL_NAMES)}")
        self.topic, self.options, self.on_full = topic, options, on_full or "block"
        self._on_full_chosen = on_full is not None
        self._connection = connection
        found = connection.topic_codecs.of(topic, codec)
        self._codec = None if type(found) is codecs.Raw else found  # bytes go the short way
        self._plain = bytes if self._codec is None else None
        """The type of payloads that go the short way."""
        self._lock = threading.Lock()
        self._put, self._put_list = ports.append_fn(), list_append_fn()
        self._port_at = np.zeros(1, dtype=np.int64)
        self._collects = buffer and options.linger_us != 0
        self._collected: list[bytes] = []
        self._run: Run | None = None
        self._collected_bytes_max = -1
        self._calls = self._last_call_ns = self._last_tick_messages = 0
        self._dropped = self._dropped_reported = 0
        self._earlier_messages = self._earlier_bytes = self._unsent = 0
        self._opened_s = connection.link.now_s()
        self._refusal: TidecastError | None = None
        self._lost = self._closing = False
        self._nodes: dict[str | int, int] = {}
        self._moves = producer.Moves()
        self._moving_to = 0
        """Sequence of the last message that waits to be moved, or was moved, to the newest ring."""
        self.producer_session: producer.ProducerSession | None = None
        """Sequences and acks; None: the topic is live."""
        self._ring = np.empty(0, dtype=np.uint8)
        self._open_ring(options)
        self._await_session()
        if self._plain and not self._collects and type(self).__module__.startswith("tidecast."):
            for name, done in self._FAST.items():  # not of a subclass that may replace them
                setattr(self, name, fast_publish(self._port_at, getattr(self, name), done))

    # --- opening, losing, reopening ---------------------------------------------------------------

    def _open_ring(self, options: PublicationOptions) -> PublicationGrant:
        grant = self._connection.link.open_publication(self.topic, options)
        try:
            self._map_ring(grant, options)
        except BaseException:
            self._give_up(grant.publication_id)
            raise
        return grant

    def _give_up(self, publication_id: int) -> None:
        """The node has opened a publication that cannot be used here."""
        with contextlib.suppress(TidecastError):
            self._connection.link.close_publication(publication_id)

    def _map_ring(self, grant: PublicationGrant, options: PublicationOptions) -> None:
        with mapping(self.topic):
            mapped = MappedFile.open(Path(grant.ring_path))
        ring = mapped.array
        about = describe(ring)
        bells = self._connection.link.bells
        if grant.continued:
            copy_packets(self._ring, ring)
        self._take_port(ports.writer_port(ring, bells, grant.message_bytes_max))
        self._mapped, self._ring, self._bells = mapped, ring, bells
        self._slots, self._has_network = about.slots, about.has_network
        self.session, self.publication_id = grant.session, grant.publication_id
        if grant.durable:
            self.producer_session = producer.ProducerSession(
                self.topic, grant, ring, options.line, options.after
            )
        if not self._on_full_chosen:
            self.on_full = grant.on_full
        per_packet = about.slot_bytes - wire.PACKET_HEADER_BYTES - wire.MESSAGE_HEADER_BYTES
        self._meta_max = per_packet - 8
        self._message_bytes_max = grant.message_bytes_max
        self.payload_bytes_max = min(about.slots // 2 * per_packet - 8, grant.message_bytes_max)
        """Longest payload without optional fields: half the history, or the link's limit."""
        self.packet_room_bytes: int = per_packet
        """Longest payload that is not fragmented."""
        self._small_max = min(SMALL_BYTES_MAX, per_packet)
        linger_us = self.options.linger_us
        linger_ns = int(ports.word_of(ring, ring_layout.LINGER_AT))
        self.flush_after_s = flush_after_s(linger_us * 1000 if linger_us else linger_ns)
        if grant.continued:
            self._connection.link.begin_publication(grant.publication_id)

    def _await_session(self) -> None:
        if self.producer_session is None and not (self.options.producer or self.options.first_seq):
            return
        try:
            if self.producer_session is None:
                raise producer.of_live_topic(self.topic, self.options)
            producer.await_session(self._connection, self.producer_session)
        except BaseException:  # Ctrl-C, too
            self._give_up(self.publication_id)
            self._unmap()
            raise

    def _take_port(self, port: ports.Port) -> None:
        self._port_at[0] = address(port)  # first: the old port lives while others can find it here
        self._port = port

    def lose(self) -> None:
        """The engine is gone. Messages that are not in the ring wait for the next engine."""
        with self._lock:
            self._lost, self.buffering = True, False
            self._port[ports.P_BUSY] = 1

    def reopen(self) -> None:
        """Open the publication again at the engine that is back. Raises the errors of opening."""
        with self._lock:
            if self._refusal is not None or not self._lost:
                return
            before = self._port
            if self.producer_session is None:
                self._resume_live()
            else:
                self._resume_session(self.producer_session)
            self._earlier_messages += int(before[writer.W_MESSAGES])
            self._earlier_bytes += int(before[writer.W_BYTES])
            self._nodes.clear()
            self._lost = False
            self.buffering = bool(self._collected or self._run is not None or self._moves)
        if self.buffering:
            self._connection.flusher.add(self)

    def _resume_live(self) -> None:
        """Open a live publication at the next engine: its session, with all that its ring holds.

        Where that engine cannot continue it, unsent messages are lost, and reported.
        """
        mapped, ring = self._mapped, self._ring
        ports.finish(self._port)  # its readers here read it to its end, then the next one
        unsent, incarnation = self._unsent_in_ring(), describe(ring).incarnation
        grant = self._open_ring(self._continuing())
        if not grant.continued and self._connection.link.incarnation != incarnation:
            self._report_unsent(unsent)
        mapped.close()

    def _continuing(self) -> PublicationOptions:
        about, ring = describe(self._ring), self._ring
        low = max(about.first, about.head - about.slots)
        sent = about.head  # without a network its readers have it
        if about.has_network:
            sent = min(max(int(ports.word_of(ring, ring_layout.SENT_AT)), low), about.head)
        return msgspec.structs.replace(
            self.options,
            continues=Continued(
                session=about.session,
                incarnation=about.incarnation,
                topic=about.topic,
                slots=about.slots,
                slot_bytes=about.slot_bytes,
                first=about.first,
                head=about.head,
                sent=sent,
                readers=tethered_readers(ring),
                age_s=self._connection.link.now_s() - self._opened_s,
            ),
        )

    def _unsent_in_ring(self) -> MessagesUnsent | None:
        """The messages in a live publication's ring that were not sent to other nodes."""
        if not self._has_network or not self._ring.size:
            return None
        about = describe(self._ring)
        sent = int(ports.word_of(self._ring, ring_layout.SENT_AT))
        held = messages_between(self._ring, about, sent, about.head)
        return MessagesUnsent(
            at_ns=time.time_ns(),
            topic=self.topic,
            session=self.session,
            messages=held.messages,
            bytes=held.bytes,
        )

    def _report_unsent(self, unsent: MessagesUnsent | None) -> None:
        if unsent is not None and unsent.messages:
            self.note_unsent(unsent.messages)
            self._connection.emit(unsent)
            self._connection.bell.ring()

    def _resume_session(self, session: producer.ProducerSession) -> None:
        """Open the producer's next session; messages that are not durable move into its ring."""
        self._moving_to = self.position
        move = producer.Move(self._mapped, self._ring)
        self._open_ring(producer.continued(self.options, session, move.durable))
        self._moves.begin(move)
        self._port[ports.P_BUSY] = 1  # nothing goes before it
        self._finish_move()

    def _finish_move(self) -> bool:
        """Move messages while there is room. True: all are moved."""
        if self._moves:
            port = self._port
            messages, size = int(port[writer.W_MESSAGES]), int(port[writer.W_BYTES])
            if self._moves.step(port):
                port[ports.P_BUSY] = 0
            self._earlier_messages -= int(port[writer.W_MESSAGES]) - messages  # counted once
            self._earlier_bytes -= int(port[writer.W_BYTES]) - size
        return not self._moves

    def fail(self, problem: TidecastError) -> None:
        """The publication is over: the next call raises ``problem``."""
        if self._refusal is None:
            self._port[ports.P_BUSY] = 1
            self._refusal = problem

    def end(self, problem: TidecastError) -> None:
        """The engine ends the publication, and sends the accepted messages, unless it is lost.

        Messages without an engine are counted and reported.
        """
        left = 0
        if self.producer_session is None and self._lock.acquire(timeout=0.5):
            try:
                if self._refusal is None:
                    if not self._lost:
                        self._flush_collected()
                    ports.finish(self._port)
                    self._report_unsent(self._unsent_in_ring() if self._lost else None)
                    left = self._take_collected()
            finally:
                self._lock.release()
        self.fail(problem)
        self.drop(left)

    def note_unsent(self, messages: int) -> None:
        """The engine, or a gateway's client, has reported unsent messages."""
        self._unsent += messages

    def _take_collected(self) -> int:
        """Drop the collected messages. Returns their number."""
        left = len(self._collected) + (0 if self._run is None else self._run.n - self._run.done)
        self._collected, self._run, self.buffering = [], None, False
        return left

    def forked(self) -> None:
        """This is a child process: refuse all calls, without the lock, which may be held."""
        self._port[ports.P_BUSY] = 1
        self._refusal = ForkedProcess(
            f"publisher of {self.topic}: made by the parent process: connect again in the child"
        )
        self._lock, self.buffering = threading.Lock(), False
        self._collected, self._run = [], None

    @property
    def connection(self) -> Any:
        """The connection that opened it."""
        return self._connection

    @property
    def link_agents(self) -> tuple[Any, Any] | None:
        """(kernel, arguments) of inline agents, for compiled loops."""
        return self._connection.link.agents

    @property
    def buffering(self) -> bool:
        """Plain messages are being collected."""
        return self._collected_bytes_max >= 0

    @buffering.setter
    def buffering(self, on: bool) -> None:
        self._collected_bytes_max = self._small_max if on else -1

    # --- steps ------------------------------------------------------------------------------------

    def prepare(
        self,
        payload: Any,
        key: bytes | str | None,
        headers: Headers | None,
        timestamp: bool | int | None,
        to: str | int | None,
        subscriber: int | None,
        flush: bool,
        due_ns: int | None = None,
    ) -> Outgoing:
        """Check and encode a message. Raises CodecError, ConfigError, PayloadTooLarge."""
        if self._refusal is not None:
            raise self._refusal
        codec = self._codec
        if codec is not None:
            payload = codecs.encode(codec, payload, self.topic)
        elif type(payload) is not bytes:
            payload = payload_bytes(payload, self.topic)
        meta, flags = b"", 0
        if not (key is headers is timestamp is subscriber is due_ns is None):  # type: ignore[comparison-overlap]
            meta, flags = metadata.encode(
                key,
                headers,
                timestamp,
                subscriber,
                of_engine=self._connection.link.of_engine,
                due_ns=due_ns,
            )
        receiver = 0 if to is None else self._node_id(to)
        if len(payload) + len(meta) > self.payload_bytes_max or len(meta) > self._meta_max:
            raise self._too_large(len(payload), len(meta))
        return Outgoing(payload, meta, flags, receiver, flush)

    def due_ns_of(self, deliver_at: Any, deliver_in: Any) -> int | None:
        """The delivery time of a message, ns since 1970. Raises ConfigError."""
        if deliver_at is deliver_in is None:
            return None
        self.check_scheduled("deliver_in" if deliver_at is None else "deliver_at")
        return metadata.due_ns_of(deliver_at, deliver_in, self._connection.link.wall_ns())

    def check_scheduled(self, field: str) -> None:
        """Raise ConfigError unless the topic can hold a message until its delivery time."""
        if self.producer_session is None:
            raise ConfigError(
                f"{field}: topic {self.topic} is live, nothing of it is kept: make it durable "
                "(tidecast topic create NAME --mode durable)"
            )

    def addressed(self, payload: bytes, meta: bytes, flags: int, receiver: int) -> Outgoing:
        """A message whose optional fields are encoded already. Raises PayloadTooLarge, Closed."""
        if self._refusal is not None:
            raise self._refusal
        if len(payload) + len(meta) > self.payload_bytes_max or len(meta) > self._meta_max:
            raise self._too_large(len(payload), len(meta))
        return Outgoing(payload, meta, flags, receiver, False)

    def attempt(self, message: Outgoing) -> bool:
        """Append a message behind those collected before it. False: full, or engine lost."""
        status = writer.FULL
        with self._lock:
            if self._flush_collected():
                status = ports.put(
                    self._port,
                    message.payload,
                    message.meta,
                    message.flags,
                    message.receiver,
                    int(message.flush),
                )
        if status == writer.TOO_LARGE:
            raise self._too_large(len(message.payload), len(message.meta))
        return status >= 0 or self._no_room()

    def begin_batch(self, messages: Any, optional: Optional, flush: bool) -> tuple[int, list[Run]]:
        """Append plain items at once. Returns their number, and the other items as runs."""
        n = 0
        if self._codec is not None and isinstance(messages, (list, tuple)):
            messages = [codecs.encode(self._codec, each, self.topic) for each in messages]
        elif type(messages) is list and self._run is None and not self._collected and not optional:
            # where its objects are, without the lock: the kernel looks whether it is free to
            n = self._put_list(self._port, messages, 0, flush) // CODES
            messages = messages[n:] if n else messages
        of_engine = self._connection.link.of_engine
        return n, batch_runs(
            messages,
            optional,
            self.topic,
            of_engine=of_engine,
            problem=self._too_large,
            scheduling=Scheduling(self.check_scheduled, self._connection.link.wall_ns()),
        )

    def attempt_run(self, run: Run, flush: bool) -> bool:
        """Append a run while there is room; ``run.done`` counts its items. False: some are left."""
        status = writer.FULL
        with self._lock:
            if self._flush_collected():
                while (status := run.append(self._port, flush)) == writer.TOO_LARGE:
                    run.refuse(self._too_large(run.length_of(run.done), 0))
        return status == 0 or self._no_room()

    def _no_room(self) -> bool:
        """False; a publication or session that is over never gets any: raises why it is.

        A writer that polls no events learns it here: the engine has closed its ring. The lock is
        not held: the end of a publication takes it.
        """
        if self._connection.rung:
            self._connection.hear()
            if self._refusal is not None:
                raise self._refusal
        session = self.producer_session
        problem = None if session is None or self._lost else session.problem("block")
        if problem is not None:
            self.fail(problem)
            raise problem
        return False

    def attempt_flush(self, *, seal: bool) -> bool:
        """Append collected messages; with ``seal`` send the open packet. False: full, lost."""
        with self._lock:
            done = self._flush_collected()
            if done and seal:
                ports.seal_open(self._port)
        return done or self._no_room()

    def try_publish(self, payload: Any) -> bool:
        """Append bytes now or not at all: False when the ring is full or the engine is lost.

        The hot path of callers that do their own batching. Never waits, counts nothing as dropped.
        Raises CodecError, PayloadTooLarge, Closed.
        """
        if type(payload) is not self._plain:
            return self._try_other(payload)
        return self.try_append(payload)

    def try_append(self, payload: bytes) -> bool:
        """`attempt` for a message that is only a payload; without the lock."""
        if not self._collected and self._run is None:
            status = self._put(int(self._port_at[0]), payload)
            if status >= 0:
                return True
            if status == writer.FULL:
                return self._no_room()
            if status == writer.TOO_LARGE:
                raise self._too_large(len(payload), 0)
        return self.attempt(Outgoing(payload, b"", 0, 0, False))

    def _try_other(self, payload: Any) -> bool:
        if self._codec is not None:
            return self.attempt(self.prepare(payload, None, None, None, None, None, False))
        if isinstance(payload, str):
            raise no_text(self.topic)
        if isinstance(payload, bytearray):
            payload = np.frombuffer(payload, dtype=np.uint8)
        writable = (
            isinstance(payload, np.ndarray)
            and payload.dtype == np.uint8
            and payload.ndim == 1
            and payload.flags.c_contiguous
            and payload.flags.writeable
        )
        if not writable:
            return self.attempt(self.prepare(payload, None, None, None, None, None, False))
        if self._collected or self._run is not None:
            return self.attempt(self.prepare(payload, None, None, None, None, None, False))
        status = ports.put_array(self._port, payload)
        if status == writer.TOO_LARGE:
            raise self._too_large(payload.size, 0)
        if status == ports.BUSY:
            return self.attempt(self.prepare(payload, None, None, None, None, None, False))
        return status >= 0 or self._no_room()

    @property
    def has_network(self) -> bool:
        """Whether other nodes may receive its messages."""
        return self._has_network

    @property
    def lock(self) -> threading.Lock:
        """The lock of the thread that appends."""
        return self._lock

    @property
    def ring_bytes(self) -> int:
        """Size of its ring, in shared memory."""
        return int(self._mapped.array.nbytes)

    def port_for_kernel(self) -> ports.Port | None:
        """The port, under the lock; None when the ring is full or the engine is lost."""
        return self._port if self._flush_collected() else None

    def _flush_collected(self) -> bool:
        """Append collected messages; the caller holds the lock. False: full, or engine lost."""
        if self._refusal is not None:
            raise self._refusal
        if self._lost or not self._finish_move():
            return False
        while True:
            if self._run is None:
                collected = self._collected
                n = len(collected)
                if n == 0:
                    return True
                self._run = list_run(collected[:n], self.topic)
                del collected[:n]
            if self._run.append(self._port, False) != 0:
                return False
            self._run = None

    # --- collecting -------------------------------------------------------------------------------

    def note_call(self) -> None:
        """A plain message was appended by itself: begin to collect when such calls come fast."""
        now = time.monotonic_ns()
        if now - self._last_call_ns > _BURST_GAP_NS:
            self._calls = 0
        self._last_call_ns = now
        self._calls += 1
        if self._calls >= _BURST_CALLS and not self._lost:
            self._calls = 0
            self.buffering = True
            self._connection.flusher.add(self)

    def tick(self) -> bool:
        """The flusher's round: append collected messages. False: the burst is over."""
        try:
            with self._lock:
                done = self._flush_collected()
                messages = int(self._port[writer.W_MESSAGES])
        except TidecastError:
            self.buffering = False
            return False
        if not done or messages != self._last_tick_messages:
            self._last_tick_messages = messages
            return True
        # A thread that saw `buffering` before this line looks again after it has collected.
        self.buffering = False
        if self._collected:
            self.buffering = True
            return True
        return False

    # --- full, lost, dropped ----------------------------------------------------------------------

    def full_error(self) -> TidecastError:
        """The error for a ring that is full, or an engine that is lost."""
        if self._lost:
            return ConnectionLost(
                f"topic {self.topic}: the engine is lost; the client is trying to reconnect"
            )
        if self.producer_session is not None and self._ring.size:
            problem = self.producer_session.problem(self.on_full) or self.producer_session.disk()
            if problem is not None:
                return problem
        if self._ring.size and ports.word_of(self._ring, ring_layout.NEAR_LIMIT_AT):
            return rate_limited(self.topic, self._ring, self.flush_after_s)
        return ring_full(self.topic, self._slots)

    # --- durable ----------------------------------------------------------------------------------

    @property
    def durable(self) -> bool:
        """Whether its topic is durable, so that ``ack="durable"`` is possible."""
        return self.producer_session is not None

    @property
    def position(self) -> int:
        """Sequence of the last message on a durable topic, else the number of messages."""
        session = self.producer_session
        if session is None:
            return self._earlier_messages + producer.messages_in(self._port)
        return max(session.first_seq - 1 + producer.messages_in(self._port), self._moving_to)

    @property
    def durable_position(self) -> int:
        """All messages up to this sequence are durable. Raises ConfigError on a live topic."""
        producer.check_ack(self, "durable")
        session = self.producer_session
        assert session is not None
        return session.durable_seq if self._ring.size else session.acked_seq

    def receipt(self) -> producer.Receipt:
        """For the messages published so far: await it, or `Receipt.wait`. Never waits itself.

        Also while the engine is lost, or the ring is full: messages that wait keep their order.
        Raises ConfigError on a live topic, Closed, Fenced.
        """
        producer.check_ack(self, "durable")
        with self._lock:
            self._flush_collected()
            run = self._run
            waiting = len(self._collected) + (0 if run is None else run.n - run.done)
            return producer.Receipt(self, self.position + waiting)

    def is_durable(self, seq: int) -> bool:
        """Whether all up to ``seq`` is durable. Raises Fenced, Closed, StorageError when never."""
        if self.durable_position >= seq:
            return True
        if self._refusal is not None:
            raise self._refusal
        session = self.producer_session
        problem = session.problem(self.on_full) if session is not None else None
        if problem is not None and not self._lost:
            raise problem
        return False

    def timeout_error(self, timeout_s: float | None) -> Timeout:
        """The error for a wait whose time is over."""
        cause = self.full_error()
        problem = Timeout(f"{cause} (waited {timeout_s:g} s)")
        problem.__cause__ = cause
        return problem

    def drop(self, n: int) -> None:
        """Count messages as dropped; the next read of events reports them."""
        first = self._dropped == self._dropped_reported
        self._dropped += n
        if first:
            self._connection.bell.ring()

    def take_dropped(self) -> MessagesDropped | None:
        """An event for the messages that were dropped since the last event."""
        n = self._dropped - self._dropped_reported
        if n == 0:
            return None
        self._dropped_reported += n
        return MessagesDropped(
            at_ns=time.time_ns(), topic=self.topic, session=self.session, messages=n
        )

    def stats(self) -> PublisherStats:
        """Counts since the publisher was opened."""
        port, run = self._port, self._run
        head, sent = self.packets, self.sent_packets
        waiting = len(self._collected) + (0 if run is None else run.n - run.done)
        return PublisherStats(
            topic=self.topic,
            session=self.session,
            messages=int(port[writer.W_MESSAGES]) + self._earlier_messages + waiting,
            bytes=int(port[writer.W_BYTES]) + self._earlier_bytes,
            collected=waiting,
            dropped=self._dropped,
            unsent=self._unsent,
            full=int(port[writer.W_FULL]),
            packets=head,
            unsent_packets=max(0, head - sent) if self._has_network else 0,
        )

    @property
    def packets(self) -> int:
        """Number of packets that its ring has ever held, with the open packet."""
        return self._ring_word(ring_layout.HEAD_AT)

    @property
    def sent_packets(self) -> int:
        """Number of `packets` that were sent to other nodes."""
        return self._ring_word(ring_layout.SENT_AT)

    def _ring_word(self, at: int) -> int:
        return int(ports.word_of(self._ring, at)) if self._ring.size else 0

    @property
    def closed(self) -> bool:
        """Whether it accepts no more messages."""
        return self._refusal is not None

    def _node_id(self, name: str | int) -> int:
        if isinstance(name, int) and 0 < name < 65_535:
            return name
        found = self._nodes.get(name)
        if found is None:
            if not isinstance(name, str):
                raise reject("to", name, "is the name of a node, or its id")
            found = self._connection.link.node_id_of(name)
            if not found:
                raise NoResponders(f"topic {self.topic}: no node {name!r} is known")
            self._nodes[name] = found
        return found

    @property
    def waits_in_vain(self) -> bool:
        """Whether the engine is lost, and no message is left for the next engine to send."""
        return self._lost and self._run is None and not self._collected

    def forget_nodes(self) -> None:
        """A node came or went: resolve node names again."""
        self._nodes.clear()

    def _too_large(self, n: int, meta_n: int) -> PayloadTooLarge:
        if meta_n > self._meta_max:
            return too_much_meta(self.topic, meta_n, self._meta_max)
        if n + meta_n > self._message_bytes_max:
            return beyond_link(self.topic, n + meta_n, self._message_bytes_max)
        return too_large(self.topic, n + meta_n, self.payload_bytes_max, self._ring, self.options)

    def abandon(self) -> None:
        """Close it: the caller that opened it has given up."""
        with contextlib.suppress(TidecastError):
            self.detach()

    def discard(self) -> None:
        """Give up the ring and the publication of a publisher that failed. Idempotent."""
        with self._lock:
            if not self._ring.size or isinstance(self._refusal, ForkedProcess):
                return
            self._unmap()
        self._connection.remove_publisher(self, notify_node=not self._lost)

    def detach(self) -> int:
        """Close the ring and refuse further messages. Returns how many found no room."""
        with self._lock:
            if self._refusal is not None:
                return 0
            if not self._lost:
                self._flush_collected()
                ports.finish(self._port)
            elif self.producer_session is None:
                ports.finish(self._port)
                self._report_unsent(self._unsent_in_ring())
            left = self._take_collected()
            self._refusal = Closed(f"publisher of {self.topic}: it is closed")
            lost = self._lost
            self._unmap()
        self._connection.remove_publisher(self, notify_node=not lost)
        return left

    def _unmap(self) -> None:
        self._port[ports.P_BUSY] = 1  # for threads that still hold this port
        counts = np.zeros(ports.PORT_FIELDS, dtype=np.int64)
        counts[ports.P_BUSY] = 1
        counts[: writer.WRITER_FIELDS] = self._port[: writer.WRITER_FIELDS]
        self._take_port(counts)
        if self.producer_session is not None:
            self.producer_session.detach()
        self._ring = np.empty(0, dtype=np.uint8)
        self._mapped.close()
