"""A small seeded generator for kernels: xorshift64*, state in ``int64[1]``."""

from __future__ import annotations

from tidecast.native.jit import inlined


@inlined
def random_bits(state, bits):
    """Uniform integer of ``bits`` bits (at most 32). Vigna, "xorshift64*", 2014."""
    x = state[0]
    x ^= (x >> 12) & 0xFFFFFFFFFFFFF
    x ^= x << 25
    x ^= (x >> 27) & 0x1FFFFFFFFF
    state[0] = x
    return ((x * 2685821657736338717) >> 16) & ((1 << bits) - 1)


@inlined
def random_below(state, limit):
    """Uniform integer below ``limit`` (at most 2^31), without division bias that matters here."""
    return (random_bits(state, 32) * limit) >> 32
