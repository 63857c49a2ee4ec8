"""A file through `tidecast pub` and `tidecast sub`, byte for byte, while packets are lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.conftest import Eventually
from tests.support.lab import Lab, Platform
from tests.support.process import Child

PATIENT = {"name": "logs", "receiver_timeout_s": 60.0}
"""No process that got no core for seconds is taken for dead: then nothing may be lost."""
FAULTS = ("--drop", "0.05", "--duplicate", "0.02", "--reorder", "0.05", "--seed", "7")


def _file(path: Path, size_bytes: int, seed: int = 7) -> int:
    """Lines of random length, empty ones and one of a megabyte among them; how many."""
    chance = random.Random(seed)
    lines, size = [b"\n", chance.randbytes(1 << 20).replace(b"\n", b"\r") + b"\n"], 1 << 20
    while size < size_bytes:
        n = chance.choice(
            (0, 0, chance.randrange(80), chance.randrange(80), chance.randrange(9000))
        )
        lines.append(chance.randbytes(n).replace(b"\n", b" ") + b"\n")
        size += n + 1
    chance.shuffle(lines)
    path.write_bytes(b"".join(lines))
    return len(lines)


def _subscriber(lab: Lab, platform: Platform, n: int, out: Path) -> Child:
    with out.open("wb") as target:
        return lab.spawn(
            "sub",
            "logs",
            "--raw",
            "--count",
            str(n),
            "--timeout",
            "60",
            platform=platform,
            stdout=target,
        )


def _subscribed(process: Child) -> bool:
    return "subscribed" in process.log.read_text()


def _carry(
    lab: Lab, eventually: Eventually, source: Platform, targets: list[Platform], size_bytes: int
) -> None:
    n = _file(lab.directory / "in", size_bytes)
    sent = (lab.directory / "in").read_bytes()
    readers = []
    for number, each in enumerate(targets):
        out = lab.directory / f"out-{number}"
        readers.append((_subscriber(lab, each, n, out), out))
    for process, _ in readers:
        eventually(lambda process=process: _subscribed(process), "the subscription")
    with (lab.directory / "in").open("rb") as input_file:
        said = source.run("pub", "logs", "-", "--raw", "--json", stdin=input_file)
    assert f'"messages": {n}' in said.stdout
    for process, out in readers:
        assert process.code() == 0, process.log.read_text()
        assert out.read_bytes() == sent


def test_file_within_one_detached_engine(lab: Lab, eventually: Eventually) -> None:
    platform = lab.platform(start=False)
    assert platform.run("up", "--detach", "--no-control").stdout.startswith("up in")
    platform.run("faults", "set", *FAULTS)
    assert platform.run("up", "--detach", "--no-control").stdout.startswith("already up")
    _carry(lab, eventually, platform, [platform, platform], 20_000_000)
    assert platform.run("down").stdout.startswith("stopped")
    assert platform.shared() == []
    assert platform.run("down").stdout.startswith("nothing was up")


def test_file_across_two_engines_with_loss(lab: Lab, eventually: Eventually) -> None:
    left, right = lab.pair(topics=[PATIENT])
    for each in (left, right):
        each.run("faults", "set", *FAULTS)
    onlooker = right.connect().subscribe("logs", tethered=False)  # keeps the image to look at
    _carry(lab, eventually, left, [right, right, left], 20_000_000)
    seen = right.counters("image")
    assert seen["losses"] > 100
    assert seen["losses"] == seen["recovered"]
    assert "lost_for_good" not in seen
    assert right.counters("receiver")["faults_dropped"] > 100
    onlooker.close()
    left.stop()
    right.stop()


def test_lines_in_are_lines_out(lab: Lab, eventually: Eventually) -> None:
    platform = lab.platform()
    out = lab.directory / "out"
    with out.open("wb") as target:
        reader = lab.spawn("sub", "t", "--count", "4", platform=platform, stdout=target)
    eventually(lambda: _subscribed(reader), "the subscription")
    (lab.directory / "in").write_bytes(b"1\n\n3\n")
    with (lab.directory / "in").open("rb") as input_file:
        platform.run("pub", "t", "-", stdin=input_file)
    platform.run("pub", "t", "--message", "4")
    assert reader.code() == 0, reader.log.read_text()
    assert out.read_bytes() == b"1\n\n3\n4\n"


@pytest.mark.long
def test_large_file_both_ways_with_loss(lab: Lab, eventually: Eventually) -> None:
    left, right = lab.pair(topics=[PATIENT])
    for each in (left, right):
        each.run("faults", "set", *FAULTS)
    _carry(lab, eventually, left, [right, right], 100_000_000)
    _carry(lab, eventually, right, [left, right], 100_000_000)
