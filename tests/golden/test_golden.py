"""The wire and the files are what they were: golden bytes, readable, field by field."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from tests.golden.golden import FOLDER, golden, parse

from tidecast.layout import packet as wire
from tidecast.native.jit import kernel
from tidecast.protocol.check import check_packet

NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))
made = functools.cache(golden)


@kernel
def checked(buffer, n):  # type: ignore[no-untyped-def]
    return check_packet(buffer, 0, n)


def test_no_golden_file_is_missing_or_left_over() -> None:
    assert sorted(made()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_as_they_were(name: str) -> None:
    text = (FOLDER / f"{name}.txt").read_text()
    assert made()[name] == text, "this changes the protocol: see CONTRIBUTING.md, versions"


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("packet_")])
def test_golden_packets_are_sound(name: str) -> None:
    raw = parse((FOLDER / f"{name}.txt").read_text())
    buffer = np.frombuffer(raw, dtype=np.uint8).copy()
    assert checked(buffer, buffer.size) == 0


def test_every_packet_type_has_one() -> None:
    kinds = {
        parse((FOLDER / f"{n}.txt").read_text())[wire.TYPE_AT]
        for n in NAMES
        if n.startswith("packet_")
    }
    assert kinds == set(wire.TYPE_NAMES)
