"""CRC32C: golden vectors, and the tables agree with the instruction on every length and offset."""

from __future__ import annotations

import numpy as np
import pytest

from tidecast.log.files import checksum
from tidecast.native.crc32c import crc32c, crc32c_by_tables
from tidecast.native.jit import kernel

VECTORS = {
    b"": 0,
    b"a": 0xC1D04330,
    b"123456789": 0xE3069283,
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
}
"""RFC 3720, B.4, and the check value of the polynomial."""


@kernel
def both(data, at, n):  # type: ignore[no-untyped-def]
    return crc32c(data, at, n), crc32c_by_tables(data, at, n)


@pytest.mark.parametrize("raw", VECTORS)
def test_golden_vectors(raw: bytes) -> None:
    data = np.frombuffer(raw + b"\0", dtype=np.uint8)
    assert both(data, 0, len(raw)) == (VECTORS[raw], VECTORS[raw])
    assert checksum(raw) == VECTORS[raw]


def test_the_tables_agree_with_the_instruction() -> None:
    data = np.random.default_rng(1).integers(0, 256, 200).astype(np.uint8)
    for at in range(9):
        for n in range(60):
            one, other = both(data, at, n)
            assert one == other


@pytest.mark.parametrize("stripes", [3 * 256, 3 * 4096])
def test_stripes_are_joined_at_every_length_around_them(stripes: int) -> None:
    data = np.random.default_rng(2).integers(0, 256, 45_000).astype(np.uint8)
    for at in (0, 3):
        for n in (k * stripes + d for k in (1, 2, 3) for d in (-9, -1, 0, 1, 8, 700)):
            one, other = both(data, at, n)
            assert one == other, (at, n)
