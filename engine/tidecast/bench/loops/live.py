"""Ping-pong through Tidecast, compiled: embedded inline, or over shared memory."""

from __future__ import annotations

from tidecast.agents.run import inline_agents
from tidecast.buffers import reader
from tidecast.buffers.writer import append_into
from tidecast.client.kernels import ports
from tidecast.native.atomics import pause
from tidecast.native.jit import inlined, kernel
from tidecast.native.system import syscalls as sys

TIMEOUT_NS = 10_000_000_000


@inlined
def _send(port, source, n):
    return append_into(
        ports.ring_of(port), ports.bells_of(port), port, source, n, source[:0], 0, 0, 0, True
    )


@inlined
def _take(port, out):
    return reader.poll_into(ports.read_ring_of(port), port, ports.assembly_of(port), out, 8)


@kernel
def ping_inline(out_port, in_port, source, n, out, samples, progress, agents, scratch):
    """Round trips from progress[0] on, agents inline. Returns 1: events wait, call again after."""
    while progress[0] < samples.size:
        began = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
        if _send(out_port, source, n) < 0:
            return 2
        spins = 0
        while True:
            work = inline_agents(agents, sys.NOW)
            if _take(in_port, out) > 0:
                break
            spins += 1
            if spins & 1023 == 0:
                if sys.clock_ns(sys.CLOCK_MONOTONIC, scratch) - began > TIMEOUT_NS:
                    return 3
            if work < 0 and spins & 63 == 0:
                progress[1] += 1
        samples[progress[0]] = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch) - began
        progress[0] += 1
        if progress[1] > 0:
            progress[1] = 0
            return 1
    return 0


@kernel
def pong_inline(out_port, in_port, source, n, out, rounds, progress, agents, scratch):
    """The other side: answer each message; ends after ``rounds`` or three seconds of silence."""
    heard = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
    spins = 0
    while progress[0] < rounds:
        work = inline_agents(agents, sys.NOW)
        k = _take(in_port, out)
        if k > 0:
            for _ in range(k):
                _send(out_port, source, n)
                progress[0] += 1
            heard = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
            continue
        if work < 0:
            return 1
        spins += 1
        if spins & 1023 == 0:
            if sys.clock_ns(sys.CLOCK_MONOTONIC, scratch) - heard > TIMEOUT_NS:
                return 3
    return 0


@kernel
def ping_ring(out_port, in_port, source, n, out, samples, scratch):
    """Round trips over shared-memory rings, spinning; no agents in between."""
    for i in range(samples.size):
        began = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
        if _send(out_port, source, n) < 0:
            return 2
        spins = 0
        while _take(in_port, out) <= 0:
            pause()
            spins += 1
            if spins & 0xFFFF == 0:
                if sys.clock_ns(sys.CLOCK_MONOTONIC, scratch) - began > TIMEOUT_NS:
                    return 3
        samples[i] = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch) - began
    return 0


@kernel
def pong_ring(out_port, in_port, source, n, out, rounds, scratch):
    """The other side of `ping_ring`."""
    heard = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
    done = 0
    spins = 0
    while done < rounds:
        k = _take(in_port, out)
        if k > 0:
            for _ in range(k):
                _send(out_port, source, n)
                done += 1
            spins = 0
            continue
        pause()
        if spins == 0:
            heard = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
        spins += 1
        if spins & 0xFFFF == 0:
            if sys.clock_ns(sys.CLOCK_MONOTONIC, scratch) - heard > TIMEOUT_NS:
                return 3
    return 0
