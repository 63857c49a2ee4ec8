"""A user's Python function inside the publish or receive loop, compiled by Numba.

    def count(data, state):          # data: uint8[:], in place; state: whatever Numba takes
        state[0] += data.size

    subscription.run_compiled(count, np.zeros(1, np.int64), max_messages=1_000_000)

A handler that takes three arguments gets a `Meta` in the middle. Functions are compiled once a
process: values that they read from outside are frozen at that time. Without the interpreter in the
loop a message costs some ten nanoseconds instead of some hundred.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numba import typeof, types
from numba.core.errors import NumbaError

from tidecast.buffers import reader, writer
from tidecast.buffers.slots import wake_armed
from tidecast.client.core.outgoing import reject
from tidecast.client.kernels import ports
from tidecast.errors import ConfigError
from tidecast.layout import packet as wire
from tidecast.native.atomics import pause
from tidecast.native.jit import closure_kernel, inlined, users
from tidecast.native.memory import BYTES, address_of, bytes_at, copy, load_i64, load_u16
from tidecast.native.system.syscalls import NOW

if TYPE_CHECKING:
    from tidecast.client.core.image import Image
    from tidecast.client.core.message import Batch
    from tidecast.client.core.publisher import PublisherCore
    from tidecast.client.core.subscription import SubscriptionCore

STOPPED, BAD_LENGTH, MORE = -20, -21, -22
_INLINE_BUNDLE_BYTES, _INLINE_IDLE_MAX = 65_507, 20_000
_ALL_PACKETS = 1 << 40
_STEP_MESSAGES = 1 << 17
_BATCH = 512
_SPINS = 400
_WHY_CHARACTERS_MAX = 2000
_HEADER, _MESSAGE_HEADER = wire.PACKET_HEADER_BYTES, wire.MESSAGE_HEADER_BYTES


class Meta(NamedTuple):
    """The facts that a compiled handler may know besides the payload. Absent: 0 and empty arrays.

    ``headers`` is the MessagePack map as it came.
    """

    flags: int
    timestamp: int
    key: Any
    headers: Any
    node: int
    session: int


_INDEX: tuple[types.Type, ...] = (types.int64,)
_META: tuple[types.Type, ...] = (
    types.NamedTuple((types.int64, types.int64, BYTES, BYTES, types.int64, types.int64), Meta),
)


@users
def meta_at(memory: Any, at: int, flags: int, node: int, session: int) -> Any:
    """Decode the optional fields at ``at``; `poll` has checked that they fit."""
    timestamp = 0
    key, headers = memory[:0], memory[:0]
    if flags & wire.TIMESTAMP:
        timestamp = load_i64(memory, at)
        at += 8
    if flags & wire.TO:
        at += 4
    if flags & wire.KEY:
        n = load_u16(memory, at)
        key = bytes_at(address_of(memory) + at + 2, n)
        at += 2 + n
    if flags & wire.HEADERS:
        headers = bytes_at(address_of(memory) + at + 2, load_u16(memory, at))
    return Meta(flags, timestamp, key, headers, node, session)


def jitable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function as kernels may call it: already compiled by the user, or plain."""
    return fn if hasattr(fn, "py_func") else users(fn)


def parameters(fn: Callable[..., Any], allowed: tuple[int, ...], shape: str) -> int:
    """How many arguments a function takes. Raises ConfigError unless that is allowed."""
    plain = getattr(fn, "py_func", fn)
    if not inspect.isfunction(plain):
        raise reject("fn", fn, f"is a Python function {shape}")
    n = len(inspect.signature(plain).parameters)
    if n not in allowed:
        raise reject("fn", fn, f"is a function {shape}; this one takes {n} arguments")
    return n


def _make_filler(fn: Callable[..., Any]) -> Any:
    write = jitable(fn)

    def fill(ring, port, i, end, size_max, state):  # type: ignore[no-untyped-def]
        """Messages from number ``i`` on, while the open packet has room. (next, last length)."""
        at = (
            port[writer.W_SLOTS_AT]
            + (port[writer.W_SEQ] & port[writer.W_MASK]) * port[writer.W_SLOT_BYTES]
        )
        last = port[writer.W_SLOT_BYTES] - size_max - _MESSAGE_HEADER
        used = port[writer.W_USED]
        n = 1
        first, first_at = i, used
        while used <= last and i < end:  # changing values stay in registers
            start = at + used + _MESSAGE_HEADER
            n = write(bytes_at(address_of(ring) + start, size_max), i, state)
            if n <= 0 or n > size_max:
                break
            writer.put_header(ring, at + used, n, wire.WHOLE)
            used += _MESSAGE_HEADER + n
            i += 1
        port[writer.W_USED] = used
        port[writer.W_MESSAGES] += i - first
        port[writer.W_BYTES] += used - first_at - (i - first) * _MESSAGE_HEADER
        return i, n

    return users(fill)


def _make_producer(fn: Callable[..., Any], cycle: Any) -> Any:
    fill = _make_filler(fn)

    def produce(  # type: ignore[no-untyped-def]
        port, state, first, end, size_max, done, packets_max
    ):
        ring, bells = ports.ring_of(port), ports.bells_of(port)
        if port[writer.W_USED] > _HEADER:
            writer.seal(ring, port)  # from here on every packet is ours from its first byte
        i = first
        status = 0
        opened = 0
        while i < end:
            used = port[writer.W_USED]
            if used + _MESSAGE_HEADER + size_max > port[writer.W_SLOT_BYTES]:
                writer.seal(ring, port)
                wake_armed(ring, bells)
                done[0] = i
                used = 0
            if used == 0:
                opened += 1
                if opened > packets_max:
                    status = MORE
                    break
                if not writer.room(ring, port, 1):
                    port[writer.W_FULL] += 1
                    status = writer.FULL
                    break
                writer.open_packet(ring, port, 0)
            i, n = fill(ring, port, i, end, size_max, state)
            if n <= 0:
                status = STOPPED
                break
            if n > size_max:
                status = BAD_LENGTH
                break
        if port[writer.W_USED] > _HEADER:
            writer.seal(ring, port)
        wake_armed(ring, bells)
        done[0] = i
        return status

    plain = closure_kernel(produce)
    if cycle is None:
        return plain

    def produce_inline(port, state, end, size_max, done, agents):  # type: ignore[no-untyped-def]
        idle = 0
        burst = max(1, min(64, _INLINE_BUNDLE_BYTES // port[writer.W_SLOT_BYTES]))
        while True:
            status = plain(port, state, done[0], end, size_max, done, burst)
            work = cycle(agents, NOW)
            if status not in (MORE, writer.FULL):
                return status
            idle = 0 if work > 0 else idle + 1
            if work < 0 or idle > _INLINE_IDLE_MAX:
                return writer.FULL  # Python looks after events and time-outs

    return closure_kernel(produce_inline)


@inlined
def _copy_whole(ring, port, out, kept):  # type: ignore[no-untyped-def]
    """Copy the message that was polled out of a ring that may be lapped; -1: it is torn, a gap.

    Returns its bytes: optional fields, then the payload.
    """
    size = out[0, 0] + out[0, 1] - out[0, 2]
    copy(kept, 0, ring, out[0, 2], size)
    if reader.still_held(ring, port):
        return size
    reader.note_torn(ring, port)
    return -1


def _make_call(fn: Callable[..., Any], with_meta: bool) -> Any:
    """Calls a handler with one message of a ring, or of other memory."""
    handle = jitable(fn)

    def call_plain(memory, at, n, _meta, _flags, _port, state):  # type: ignore[no-untyped-def]
        handle(bytes_at(address_of(memory) + at, n), state)

    def call_meta(memory, at, n, meta, flags, port, state):  # type: ignore[no-untyped-def]
        about = meta_at(memory, meta, flags, port[ports.Q_NODE], port[ports.Q_SESSION])
        handle(bytes_at(address_of(memory) + at, n), about, state)

    return users(call_meta if with_meta else call_plain)


def _make_rest(fn: Callable[..., Any], with_meta: bool) -> Any:
    """A kernel for the messages of a batch that was taken before. ``rows``: poll's output."""
    call = _make_call(fn, with_meta)

    def consume_rows(base, size, rows, n, port, state):  # type: ignore[no-untyped-def]
        memory = bytes_at(base, size)
        for k in range(n):
            call(memory, rows[k, 0], rows[k, 1], rows[k, 2], rows[k, 3], port, state)
        return n

    return closure_kernel(consume_rows)


def _make_consumer(fn: Callable[..., Any], with_meta: bool, cycle: Any) -> Any:
    call = _make_call(fn, with_meta)

    def consume(port, out, kept, state, limit, spins, done):  # type: ignore[no-untyped-def]
        ring, assembly = ports.read_ring_of(port), ports.assembly_of(port)
        in_place = port[ports.Q_IN_PLACE] != 0
        most = out.shape[0] if in_place else 1
        status, spun = 0, 0
        while done[0] < limit:
            n = reader.poll_into(ring, port, assembly, out, min(most, limit - done[0]))
            if n > 0 and not in_place:
                size = _copy_whole(ring, port, out, kept)
                if size < 0:
                    status = reader.GAP
                    break
                call(kept, size - out[0, 1], out[0, 1], 0, out[0, 3], port, state)
                done[0] += 1
                spun = 0
            elif n > 0:
                for k in range(n):
                    call(ring, out[k, 0], out[k, 1], out[k, 2], out[k, 3], port, state)
                done[0] += n
                spun = 0
                if not reader.still_held(ring, port):  # evicted
                    reader.note_torn(ring, port)
                    status = reader.GAP
                    break
            elif n == reader.ASSEMBLED:
                call(
                    assembly,
                    0,
                    port[reader.R_TOTAL],
                    port[reader.R_META_AT],
                    port[reader.R_FLAGS],
                    port,
                    state,
                )
                done[0] += 1
            elif n < 0:
                status = n
                break
            else:
                spun += 1
                if spun > spins:
                    break
                pause()
        return status

    plain = closure_kernel(consume)
    if cycle is None:
        return plain

    def consume_inline(port, out, kept, state, limit, done, agents):  # type: ignore[no-untyped-def]
        idle = 0
        while done[0] < limit:
            work = cycle(agents, NOW)
            status = plain(port, out, kept, state, limit, 0, done)
            if status != 0:
                return status
            idle = 0 if work > 0 else idle + 1
            if work < 0 or idle > _INLINE_IDLE_MAX:
                return 0  # Python looks after events and time-outs
        return 0

    return closure_kernel(consume_inline)


_HANDLER = "fn(data, state) or fn(data, meta, state)"
_NOTHING_SPUN = (0,)
_NOTHING = np.empty(0, dtype=np.uint8)
_kernels: WeakKeyDictionary[Callable[..., Any], dict[str, Any]] = WeakKeyDictionary()
_lock = threading.Lock()


def kernel_of(fn: Callable[..., Any], kind: str, make: Callable[[], Any]) -> Any:
    """One kernel a function and kind, made once."""
    with _lock:
        made = _kernels.setdefault(fn, {})
        if kind not in made:
            made[kind] = make()
        return made[kind]


def run_kernel(
    fn: Callable[..., Any], state: Any, between: tuple[types.Type, ...], kernel: Any, *args: Any
) -> int:
    """Enter a kernel with a user's function in it. Raises ConfigError if it does not compile.

    ``between``: the arguments of the function between the message and the state.
    """
    try:
        return int(kernel(*args))
    except NumbaError as problem:
        name = getattr(fn, "__name__", str(fn))
        raise ConfigError(f"fn: {name!r}: {_why(fn, state, between, problem)}") from problem


def compile_handler(fn: Callable[..., Any], state: Any) -> None:
    """Compile a handler of `Subscription.run_compiled` for this type of state: before subscribing.

    It takes seconds, once a process. Done while messages come, the subscription reads none in that
    time, and holds publishers with flow `min` back. Raises ConfigError if it does not compile.
    """
    n = parameters(fn, (2, 3), _HANDLER)
    kernel = kernel_of(fn, f"consume{n}", lambda: _make_consumer(fn, n == 3, None))
    _enter_empty(fn, state, _META if n == 3 else (), kernel, _NOTHING_SPUN)


def _enter_empty(
    fn: Callable[..., Any],
    state: Any,
    between: tuple[types.Type, ...],
    kernel: Any,
    spins: tuple[int, ...],
    *agents: Any,
) -> None:
    """Enter a consuming kernel with a limit of no messages: it compiles, and looks at nothing."""
    port = np.zeros(ports.READ_PORT_FIELDS, dtype=np.int64)
    out = np.zeros((_BATCH, reader.OUT_FIELDS), dtype=np.int64)
    done = np.zeros(1, dtype=np.int64)
    run_kernel(fn, state, between, kernel, port, out, _NOTHING, state, 0, *spins, done, *agents)


def _why(
    fn: Callable[..., Any], state: Any, between: tuple[types.Type, ...], problem: NumbaError
) -> str:
    """Numba's text on the user's function alone: its own lines, not those of a kernel."""
    of_state = f"a state of type {type(state).__name__}"
    try:
        kind = typeof(state)
    except ValueError:
        return f"cannot be compiled with {of_state}: allowed is an array, a number, a tuple of such"
    try:
        closure_kernel(getattr(fn, "py_func", fn)).compile((BYTES, *between, kind))
    except NumbaError as alone:
        problem = alone
    lines = (line for line in str(problem).splitlines() if line.strip())
    return f"cannot be compiled with {of_state}:\n" + "\n".join(lines)[:_WHY_CHARACTERS_MAX]


class CompiledPublisher:
    """The progress of one compiled producer."""

    def __init__(
        self,
        publisher: PublisherCore,
        fn: Callable[..., Any],
        state: Any,
        count: int,
        message_bytes_max: Any,
    ) -> None:
        parameters(fn, (3,), "fn(buf, i, state) -> int")
        room = publisher.packet_room_bytes
        if not isinstance(message_bytes_max, int) or not 1 <= message_bytes_max <= room:
            raise reject(
                "message_bytes_max",
                message_bytes_max,
                f"are 1 to {room}: a compiled producer's messages fit a packet",
            )
        self._publisher, self._fn, self._state = publisher, fn, state
        self._count, self._size_max = count, message_bytes_max
        self._agents = publisher.link_agents
        kind = "produce" if self._agents is None else "produce inline"
        cycle = None if self._agents is None else self._agents[0]
        self._kernel = kernel_of(fn, kind, lambda: _make_producer(fn, cycle))
        self._done = np.zeros(1, dtype=np.int64)

    @property
    def done(self) -> int:
        """Messages published so far."""
        return int(self._done[0])

    def step(self, lock: AbstractContextManager[Any]) -> bool:
        """Publish until the ring is full. True: all are out, or the function stopped."""
        while self.done < self._count:
            with lock:
                port = self._publisher.port_for_kernel()
                if port is None:
                    return False
                first = self.done
                end = min(self._count, first + _STEP_MESSAGES)
                port[ports.P_BUSY] = 1
                tail: tuple[Any, ...] = (end, self._size_max, self._done)
                if self._agents is None:
                    tail = (first, *tail, _ALL_PACKETS)
                else:
                    tail = (*tail, self._agents[1])
                try:
                    status = run_kernel(
                        self._fn, self._state, _INDEX, self._kernel, port, self._state, *tail
                    )
                finally:
                    port[ports.P_BUSY] = int(self._publisher.closed)
            if status == BAD_LENGTH:
                raise ConfigError(
                    f"fn: {self._fn.__name__!r}: returned more than message_bytes_max, "
                    f"{self._size_max}, for message {self.done}"
                )
            if status == STOPPED:
                return True
            if status == writer.FULL:
                return False
        return True

    def may_go_on(self) -> bool:
        """There was room for some more; False: still none."""
        before = self.done
        return self.step(self._publisher.lock) or self.done > before


class CompiledHandler:
    """The progress of one compiled handler."""

    def __init__(
        self,
        subscription: SubscriptionCore,
        fn: Callable[..., Any],
        state: Any,
        max_messages: int | None,
        until: Callable[[], bool] | threading.Event | None,
    ) -> None:
        n = parameters(fn, (2, 3), _HANDLER)
        if isinstance(until, threading.Event):
            until = until.is_set
        if until is not None and not callable(until):
            raise reject("until", until, "is a function without arguments, or an Event")
        self._subscription, self._fn, self._state = subscription, fn, state
        self._between = _META if n == 3 else ()
        self._limit, self._until = max_messages, until
        self._kernel = kernel_of(fn, f"consume{n}", lambda: _make_consumer(fn, n == 3, None))
        self._agents = subscription.link_agents
        self._inline_kernel: Any = None
        if self._agents is not None:
            cycle = self._agents[0]
            self._inline_kernel = kernel_of(
                fn, f"consume{n} inline", lambda: _make_consumer(fn, n == 3, cycle)
            )
            _enter_empty(fn, state, self._between, self._inline_kernel, (), self._agents[1])
        compile_handler(fn, state)  # now, not while the first messages wait
        self._out = np.zeros((_BATCH, reader.OUT_FIELDS), dtype=np.int64)
        self._kept = _NOTHING
        """Where a message is copied to before the handler sees it, if the ring may be lapped."""
        self._now = np.zeros(1, dtype=np.int64)
        self.done = 0

    @property
    def ended(self) -> bool:
        """Enough messages, or `until` says so."""
        enough = self._limit is not None and self.done >= self._limit
        return enough or (self._until is not None and bool(self._until()))

    def step(self) -> bool:
        """Handle the messages in a ring. False: there were none. Raises GapError by policy."""
        with self._subscription.reading:
            return self._step()

    def _step(self) -> bool:
        left = (
            _STEP_MESSAGES if self._limit is None else min(_STEP_MESSAGES, self._limit - self.done)
        )
        rest = self._subscription.take_rest(left)
        if rest is not None:
            self._handle_rest(rest)
            return True
        image, single = self._subscription.next_image()
        if image is None:
            return False
        inline, kept = self._subscription.inline, self._kept
        if not image.tethered and kept.size < image.port[reader.R_SLOT_BYTES]:
            kept = self._kept = np.empty(int(image.port[reader.R_SLOT_BYTES]), dtype=np.uint8)
        self._now[0] = 0
        try:
            if self._inline_kernel is not None and single and self._agents is not None:
                status = run_kernel(
                    self._fn,
                    self._state,
                    self._between,
                    self._inline_kernel,
                    image.port,
                    self._out,
                    kept,
                    self._state,
                    left,
                    self._now,
                    self._agents[1],
                )
            else:
                status = run_kernel(
                    self._fn,
                    self._state,
                    self._between,
                    self._kernel,
                    image.port,
                    self._out,
                    kept,
                    self._state,
                    left,
                    _SPINS if single and not inline else 0,
                    self._now,
                )
        finally:
            self.done += int(self._now[0])
        self._after(image, status)
        return bool(self._now[0] > 0 or status != 0)

    def _handle_rest(self, rest: Batch) -> None:
        """Messages that were taken before, and that the user has not got."""
        n = len(self._between)
        kernel = kernel_of(self._fn, f"rest{n}", lambda: _make_rest(self._fn, n > 0))
        base, size, rows, port = rest.for_kernel()
        self.done += run_kernel(
            self._fn,
            self._state,
            self._between,
            kernel,
            base,
            size,
            rows,
            len(rows),
            port,
            self._state,
        )

    def _after(self, image: Image, status: int) -> None:
        if status == reader.NEED_BUFFER:
            image.make_room()
        elif status == reader.GAP:
            self._subscription.report(image)
