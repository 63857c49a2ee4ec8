"""Kernels that write the headers of a record, a map of MessagePack, from the lists of others."""

from __future__ import annotations

from tidecast.native.jit import inlined
from tidecast.native.memory import load_u8, store_u8


@inlined
def put_be(out, to, value, n):
    """Write ``n`` bytes of a number, the highest first; where they end."""
    for i in range(n):
        store_u8(out, to + i, (value >> (8 * (n - 1 - i))) & 0xFF)
    return to + n


@inlined
def same_bytes(data, a, b, n):
    """Are ``n`` bytes at both places the same?"""
    for i in range(n):
        if load_u8(data, a + i) != load_u8(data, b + i):
            return False
    return True


@inlined
def str_bytes(n):
    """Bytes of a text of ``n`` bytes, below 64 KiB."""
    return n + (1 if n < 32 else 2 if n < 256 else 3)


@inlined
def bin_bytes(n):
    """Bytes of ``n`` binary bytes, below 64 KiB."""
    return n + (2 if n < 256 else 3 if n < 65_536 else 5)


@inlined
def put_str_head(out, to, n):
    """Write the head of a text of ``n`` bytes. Returns where the text begins."""
    if n < 32:
        store_u8(out, to, 0xA0 | n)
        return to + 1
    if n < 256:
        store_u8(out, to, 0xD9)
        store_u8(out, to + 1, n)
        return to + 2
    store_u8(out, to, 0xDA)
    return put_be(out, to + 1, n, 2)


@inlined
def put_name(out, to, name):
    """Write a name, whose array has its length and its bytes. Returns where its value begins."""
    to = put_str_head(out, to, name[0])
    for i in range(name[0]):
        store_u8(out, to + i, name[1 + i])
    return to + name[0]


@inlined
def put_bin_head(out, to, n):
    """Write the head of ``n`` binary bytes. Returns where they begin."""
    if n < 256:
        store_u8(out, to, 0xC4)
        store_u8(out, to + 1, n)
        return to + 2
    store_u8(out, to, 0xC5)
    return put_be(out, to + 1, n, 2)
