"""Raw sockets and raw memory, compiled by Numba: no protocol."""

from __future__ import annotations

from tidecast.native.atomics import load_acquire, pause, store_release
from tidecast.native.jit import inlined, kernel
from tidecast.native.memory import address_of, copy, load_i64, store_i64, store_u16
from tidecast.native.system import syscalls as sys
from tidecast.transport.wire_io import (
    RECEIVE_IO,
    SEND_IO,
    bundle_bytes,
    bundle_segment_bytes,
    receive,
    send_run,
)

_send, _receive = SEND_IO.of, RECEIVE_IO.of


@kernel
def flood(tx_words, memory, stride, packets, run, duration_ns, scratch):
    """Send runs of ``run`` packets out of ``memory`` for a time. Returns packets sent."""
    tx = _send(tx_words)
    began = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
    sent = 0
    at = 0
    for i in range(packets):
        store_u16(memory, i * stride + 10, stride)
    while sys.clock_ns(sys.CLOCK_MONOTONIC, scratch) - began < duration_ns:
        n = min(run, packets - at)
        done = send_run(tx, 0, 1, memory, at * stride, stride, n, True, 0)
        if done > 0:
            sent += done
            at += done
            if at >= packets:
                at = 0
    return sent


@kernel
def send_paced(tx_words, memory, stride, calls, packets, interval_ns, scratch):
    """Send ``packets`` in ``calls`` system calls, one an interval, asleep between them."""
    tx = _send(tx_words)
    due = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
    sent = 0
    for i in range(packets // calls + 1):
        store_u16(memory, i * stride + 10, stride)
    for i in range(calls):
        now = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
        if due > now:
            store_i64(scratch, 16, 0)
            sys.futex_wait(address_of(scratch) + 16, 0, due - now, scratch)
        due += interval_ns
        n = packets * (i + 1) // calls - sent
        if n > 0:
            sent += max(send_run(tx, 0, 1, memory, 0, stride, n, True, 0), 0)
    return sent


@kernel
def soak(rx_words, duration_ns, silence_ns, scratch, counts):
    """Receive for a time, from the first packet on. counts: {packets, bytes, elapsed_ns}.

    ``silence_ns`` without a packet end it and do not count. Without any ``elapsed_ns`` stays 0.
    """
    rx = _receive(rx_words)
    began = 0
    now = 0
    quiet_since = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
    while True:
        now = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
        bundles = receive(rx)
        if bundles > 0:
            if began == 0:
                began = now
            quiet_since = now
            for i in range(bundles):
                n = bundle_bytes(rx, i)
                size = max(bundle_segment_bytes(rx, i), 1)
                counts[0] += (n + size - 1) // size
                counts[1] += n
        elif now - quiet_since > silence_ns:
            now = quiet_since
            break
        if began != 0 and now - began >= duration_ns:
            break
    if began != 0:
        counts[2] = now - began
    return 0


@kernel
def ping(tx_words, rx_words, packet, n, rounds, samples, scratch):
    """Raw ping-pong, spinning: send, wait for the answer, note the round trip in ns."""
    tx, rx = _send(tx_words), _receive(rx_words)
    lost = 0
    for i in range(rounds):
        began = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
        send_run(tx, 0, 1, packet, 0, n, 1, False, 0)
        now = began
        while True:
            if receive(rx) > 0:
                break
            now = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
            if now - began > 1_000_000_000:
                lost += 1
                break
        samples[i] = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch) - began
    return lost


@kernel
def pong(tx_words, rx_words, packet, n, rounds, scratch):
    """The other side of `ping`; ends after ``rounds`` or two seconds of silence."""
    tx, rx = _send(tx_words), _receive(rx_words)
    heard = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
    done = 0
    while done < rounds:
        if receive(rx) > 0:
            send_run(tx, 0, 1, packet, 0, n, 1, False, 0)
            done += 1
            heard = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
        elif sys.clock_ns(sys.CLOCK_MONOTONIC, scratch) - heard > 2_000_000_000:
            break
    return done


MEMORY_RING_AT, MEMORY_HEAD_AT, MEMORY_TAIL_AT, MEMORY_STOP_AT = 4096, 0, 128, 256
ALONE = -1
"""The other process did nothing for ``silence_ns``."""


@inlined
def _await_change(shared, at, known, silence_ns, scratch):
    """Spin until the word at ``at`` is not ``known``. Returns False after ``silence_ns``."""
    spins = 0
    began = 0
    while load_acquire(shared, at) == known:
        pause()
        spins += 1
        if spins & 0xFFFF == 0:
            now = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
            if began == 0:
                began = now
            if now - began > silence_ns:
                return False
    return True


@kernel
def memory_write(shared, slots, source, n, duration_ns, silence_ns, scratch):
    """Copy ``n``-byte messages into a ring, one release store each: the floor of `ipc`.

    Returns messages written, or ALONE.
    """
    began = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
    head = 0
    tail = 0
    stride = (n + 15) & -8
    while True:
        if head - tail >= slots:
            if not _await_change(shared, MEMORY_TAIL_AT, tail, silence_ns, scratch):
                return ALONE
            tail = load_acquire(shared, MEMORY_TAIL_AT)
        at = MEMORY_RING_AT + (head & (slots - 1)) * stride
        store_i64(shared, at, n)
        copy(shared, at + 8, source, 0, n)
        head += 1
        store_release(shared, MEMORY_HEAD_AT, head)
        if head & 4095 == 0 and sys.clock_ns(sys.CLOCK_MONOTONIC, scratch) - began > duration_ns:
            break
    store_release(shared, MEMORY_STOP_AT, 1)
    return head


@kernel
def memory_read(shared, slots, n, counts, silence_ns, scratch):
    """Read those messages; counts: {messages, sum of first bytes, elapsed_ns}.

    Returns messages read, or ALONE.
    """
    tail = 0
    began = 0
    total = 0
    spins = 0
    quiet_since = 0
    stride = (n + 15) & -8
    while True:
        head = load_acquire(shared, MEMORY_HEAD_AT)
        if head == tail:
            if load_acquire(shared, MEMORY_STOP_AT) != 0:
                if load_acquire(shared, MEMORY_HEAD_AT) == tail:
                    break
            pause()
            spins += 1
            if spins & 0xFFFF == 0:
                now = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
                if quiet_since == 0:
                    quiet_since = now
                if now - quiet_since > silence_ns:
                    return ALONE
            continue
        if began == 0:
            began = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
        quiet_since = 0
        while tail < head:
            at = MEMORY_RING_AT + (tail & (slots - 1)) * stride
            total += load_i64(shared, at + 8)
            tail += 1
        store_release(shared, MEMORY_TAIL_AT, tail)
    counts[0], counts[1] = tail, total
    counts[2] = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch) - began if began != 0 else 0
    return tail


@kernel
def memory_ping(shared, rounds, samples, silence_ns, scratch):
    """Ping-pong over two words of shared memory. Returns rounds, or ALONE."""
    for i in range(1, rounds + 1):
        began = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
        store_release(shared, MEMORY_HEAD_AT, i)
        if not _await_change(shared, MEMORY_TAIL_AT, i - 1, silence_ns, scratch):
            return ALONE
        samples[i - 1] = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch) - began
    return rounds


@kernel
def memory_pong(shared, rounds, silence_ns, scratch):
    """The other side of `memory_ping`."""
    for i in range(1, rounds + 1):
        if not _await_change(shared, MEMORY_HEAD_AT, i - 1, silence_ns, scratch):
            return ALONE
        store_release(shared, MEMORY_TAIL_AT, i)
    return rounds


@kernel
def copy_packets(packet, target, packets, scratch):
    """Copy one packet again and again: the floor of sealing. Returns ns."""
    began = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
    for i in range(packets):
        store_i64(packet, 0, i)
        copy(target, 0, packet, 0, packet.size)
    return sys.clock_ns(sys.CLOCK_MONOTONIC, scratch) - began
