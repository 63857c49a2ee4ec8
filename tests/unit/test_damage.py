"""Bits that turn in any file of a durable topic: it is reported, and nothing wrong is served."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.durable import Platform
from tests.support.logs import blocks

from tidecast.api.start import Latest
from tidecast.cli import main
from tidecast.errors import CorruptLog, NotFound
from tidecast.events import FileDamaged, SubscriptionDamaged, TornTail
from tidecast.layout import segment as lay
from tidecast.log import batch
from tidecast.log.building import check, record_table, records
from tidecast.log.files import open_json, seal_json
from tidecast.queues.verify import verify_files

SETTINGS: dict[str, Any] = {
    "queues": 2,
    "fsync": "batch",
    "segment_bytes": 1 << 16,
    "history_bytes": 1 << 19,
}
N = 700
Records = dict[tuple[int, int], bytes]


def body(n: int) -> bytes:
    return b"%06d" % n + bytes(n % 700)


def served(one: Platform) -> tuple[Records, list[str]]:
    """(payloads by queue and token, problems): each queue up to what cannot be read."""
    out, found, problems = record_table(), {}, []
    for log in one.topic.logs:
        reader = log.reader()
        try:
            for buffer, n in blocks(reader, log.earliest_token, 1 << 20):
                raw, at = buffer[:n].tobytes(), 0
                while at < n:
                    length = check(buffer, at, n)
                    rows = out[: records(buffer, at, n, out, 0)].tolist()
                    for row in rows:
                        first = row[batch.O_PAYLOAD_AT]
                        payload = raw[first : first + row[batch.O_PAYLOAD_N]]
                        found[log.queue, row[batch.O_TOKEN]] = payload
                    at += length
        except CorruptLog as problem:
            problems.append(str(problem))
        reader.close()
    return found, problems


def publish_all(one: Platform) -> int:
    """Publish all, also what was published before; how many are stored then."""
    publisher = one.publisher(producer="p", first_seq=1, on_full="block")
    for n in range(N):
        publisher.publish(body(n), key=b"k%d" % (n % 7))
        one.run(int(n % 10 == 0))
    one.run(50)
    assert publisher.durable_position == N
    publisher.close()
    one.run(20)
    return sum(log.next_token for log in one.topic.logs)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Records]:
    """A data directory with one of each kind of file, and what its queues hold."""
    directory = tmp_path_factory.mktemp("whole") / "data"
    directory.mkdir()
    one = Platform(directory, **SETTINGS)
    consumer = one.connect().consumer("orders", "half")
    publish_all(one)
    for _ in range(N // 2 // 50):
        consumer.fetch(50, 5.0).ack()
    one.run(300)
    consumer.close()
    one.node.consumers.perform("pause_queue", {"topic": "orders", "queue": 1, "paused": True})
    found, problems = served(one)
    assert len(found) == N
    assert not problems
    one.stop()
    return directory, found


def victims(directory: Path) -> dict[str, list[Path]]:
    queues = directory / "queues" / "orders"
    segments = sorted(queues.glob("00000/*.log"))
    assert len(segments) > 2
    return {
        "closed segment": segments[:-1],
        "open segment": segments[-1:],
        "index": sorted(queues.glob("00000/*.index"))[:-1],
        "producers": sorted(queues.glob("*/*.producers")),
        "map": [queues / "map.json"],
        "paused": [queues / "paused.json"],
        "grants": [queues / "grants.log"],
        "subscription": sorted((directory / "subscriptions").glob("*.sub")),
    }


KINDS = (
    "closed segment",
    "open segment",
    "index",
    "producers",
    "map",
    "paused",
    "grants",
    "subscription",
)


def damage(path: Path, rng: random.Random) -> None:
    """Turn a bit, or make a part of it zeros."""
    raw = bytearray(path.read_bytes())
    at = rng.randrange(len(raw))
    if rng.random() < 0.7:
        raw[at] ^= 1 << rng.randrange(8)
    else:
        while not any(raw[at : at + 64]):
            at = rng.randrange(len(raw))
        raw[at : at + 64] = bytes(len(raw[at : at + 64]))
    path.write_bytes(raw)


def turned(whole: tuple[Path, Records], tmp_path: Path, kind: str, seed: int) -> None:
    rng = random.Random(f"{kind} {seed}")
    before, records = whole
    directory = tmp_path / f"{seed}"
    shutil.copytree(before, directory, symlinks=True)
    path = rng.choice(victims(directory)[kind])
    damage(path, rng)
    result = CliRunner().invoke(main, ["queue", "verify", "--data-dir", str(directory)])
    named = path.stem in result.output or path.name in result.output
    assert named == (result.exit_code == 1), result.output
    one = Platform(directory, **SETTINGS)
    told = {getattr(event, "file", "") for event in one.durable.registry.notified}
    if one.durable.registry.broken:
        assert path.name in str(one.durable.registry.broken["orders"])
        assert named
        one.stop()
        return
    found, problems = served(one)
    assert all(records[at] == payload for at, payload in found.items())
    reported = bool(problems) or any(path.stem in file for file in told)
    assert reported or found == records
    if kind == "open segment":  # what was written last may be a write that was cut short
        assert reported
    else:
        assert named, "verify names it"
    if kind in ("producers", "index", "map", "grants"):
        assert publish_all(one) == N, "all of it is known to be there"
    if kind == "subscription":
        with pytest.raises(CorruptLog, match="its positions are not known"):
            one.connect().consumer("orders", "half", start=Latest())
    if kind == "paused":
        assert one.node.consumers.topics["orders"].paused
    one.stop()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_bits_that_turn_are_found_and_never_served(
    whole: tuple[Path, Records], tmp_path: Path, kind: str, seed: int
) -> None:
    turned(whole, tmp_path, kind, seed)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_many_bits_that_turn(whole: tuple[Path, Records], tmp_path: Path, kind: str) -> None:
    for seed in range(100, 130):
        turned(whole, tmp_path, kind, seed)


def test_verify_names_an_index_whatever_byte_of_it_turned(
    whole: tuple[Path, Records], tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(whole[0], directory, symlinks=True)
    path = victims(directory)["index"][0]
    before = path.read_bytes()
    assert verify_files(directory, ["orders"]) == []
    assert len(before) > lay.SEGMENT_HEADER_BYTES, "it has an entry"
    unnoticed = []
    for at in range(len(before)):
        turned = bytearray(before)
        turned[at] ^= 16
        path.write_bytes(turned)
        named = [p.file for r in verify_files(directory, ["orders"]) for p in r.problems]
        if named != [path]:
            unnoticed.append(at)
    assert unnoticed == []


def test_a_damaged_subscription_is_not_created_again_and_is_reported_until_it_is_deleted(
    whole: tuple[Path, Records], tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(whole[0], directory, symlinks=True)
    (path,) = (directory / "subscriptions").glob("*.sub")
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 4
    path.write_bytes(raw)
    for _ in range(2):  # also at the next start
        one = Platform(directory, **SETTINGS)
        late = one.connect()
        late.pump()
        events = [each for each in late._events if isinstance(each, SubscriptionDamaged)]
        assert [(each.topic, each.subscription) for each in events] == [("orders", "half")]
        with pytest.raises(
            CorruptLog, match=r"subscription half of orders: .*half\.bad is damaged"
        ):
            late.consumer("orders", "half")
        assert one.node.consumers.position("orders", 0) == 0, "retention deletes nothing"
        one.stop()
    result = CliRunner().invoke(main, ["queue", "verify", "--data-dir", str(directory)])
    assert result.exit_code == 1
    assert "subscription half: its file is damaged" in result.output

    one = Platform(directory, **SETTINGS)
    one.node.consumers.perform("delete", {"pattern": "orders", "name": "half"})
    fresh = one.connect()
    fresh.pump()
    assert SubscriptionDamaged not in [type(each) for each in fresh._events]
    consumer = fresh.consumer("orders", "half")
    assert consumer.fetch(1, 5.0)
    assert one.node.consumers.position("orders", 0) is not None
    consumer.close()
    with pytest.raises(NotFound):
        one.node.consumers.perform("delete", {"pattern": "orders", "name": "other"})
    one.stop()


def test_what_a_start_finds_is_reported_to_clients_that_connect_later(
    whole: tuple[Path, Records], tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(whole[0], directory, symlinks=True)
    files = victims(directory)
    with files["open segment"][0].open("ab") as tail:
        tail.write(b"torn")
    index = files["index"][0]
    index.write_bytes(index.read_bytes()[:-9])
    one = Platform(directory, **SETTINGS)
    client = one.connect()
    client.pump()
    kinds = [type(each) for each in client._events]
    assert TornTail in kinds
    assert FileDamaged in kinds
    one.stop()


def test_a_sealed_object_is_opened_and_a_turned_bit_is_found() -> None:
    content = b'{"first":2,"growths":[]}'
    sealed = seal_json(content)
    assert open_json(sealed) == content
    assert json.loads(sealed)["first"] == 2
    assert open_json(content) == content, "of a version that sealed nothing"
    assert open_json(seal_json(b"{}")) == b"{}"
    wrong = 0
    for at in range(len(sealed) * 8):
        raw = bytearray(sealed)
        raw[at // 8] ^= 1 << at % 8
        try:
            assert json.loads(open_json(bytes(raw)))["first"] == 2
        except ValueError:
            wrong += 1
    assert wrong == 8 * len(sealed)
