"""`tidecast queue`: list, inspect, verify; corruption is named by topic, queue, token and file."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.support.logs import SEGMENT_BYTES, opened, put

from tidecast.cli import main
from tidecast.layout import segment as lay
from tidecast.log.files import queue_directory, seal_json, segment_name
from tidecast.log.inspect import PAUSED_NAME, PausedTopic


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    for queue in range(2):
        with opened(queue_directory(tmp_path, "orders", queue), queue=queue) as log:
            for i in range(400):
                put(
                    log,
                    *(b"%d" % i + bytes(100) for _ in range(3)),
                    time_ns=i,
                    producer=7,
                    base_seq=3 * i + 1,
                    epoch=2,
                )
    return tmp_path


def tidecast(data_dir: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["queue", *arguments, "--data-dir", str(data_dir)])


def test_list(data_dir: Path) -> None:
    rows = json.loads(tidecast(data_dir, "list", "--json").output)
    assert [(r["topic"], r["queue"], r["earliest_token"]) for r in rows] == [
        ("orders", 0, 0),
        ("orders", 1, 0),
    ]
    assert rows[0]["segments"] == -(-rows[0]["bytes"] // SEGMENT_BYTES)
    assert "orders" in tidecast(data_dir, "list").output
    result = tidecast(data_dir, "list", "nobody")
    assert result.exit_code == 1
    assert "there are orders" in result.output


def test_list_shows_pauses(data_dir: Path) -> None:
    """Of the topic and of single queues; a file that cannot be read pauses the topic."""
    path = queue_directory(data_dir, "orders", 0).parent / PAUSED_NAME
    path.write_bytes(seal_json(msgspec.json.encode(PausedTopic(topic=True, queues=[1]))))

    def paused() -> list[list[str]]:
        return [row["paused_by"] for row in json.loads(tidecast(data_dir, "list", "--json").output)]

    assert paused() == [["topic"], ["topic", "queue"]]
    assert "topic and queue" in tidecast(data_dir, "list").output
    path.write_bytes(b"damaged")
    assert paused() == [["topic"], ["topic"]]
    path.unlink()
    assert paused() == [[], []]


def test_inspect(data_dir: Path) -> None:
    newest = json.loads(tidecast(data_dir, "inspect", "orders", "1", "--json").output)
    assert [r["token"] for r in newest] == [3 * i for i in range(380, 400)]
    some = json.loads(
        tidecast(
            data_dir, "inspect", "orders", "--offset", "700", "--batches", "2", "--json"
        ).output
    )
    assert [(r["token"], r["first_seq"], r["last_seq"], r["producer"]) for r in some] == [
        (699, 700, 702, 7),
        (702, 703, 705, 7),
    ]
    assert "699" in tidecast(data_dir, "inspect", "orders", "--offset", "700").output


def test_verify_says_that_all_is_sound(data_dir: Path) -> None:
    result = tidecast(data_dir, "verify")
    assert "[" not in result.stderr, "markup of the progress line"
    assert result.exit_code == 0
    assert "2 queues, 2400 records" in result.output
    assert "all sound" in result.output


def test_verify_names_what_is_corrupt_and_goes_on_behind_it(data_dir: Path) -> None:
    directory = queue_directory(data_dir, "orders", 1)
    path = directory / segment_name(0)
    raw = bytearray(path.read_bytes())
    length = int.from_bytes(raw[64:68], "little")
    raw[lay.SEGMENT_HEADER_BYTES + 3 * length + 100] ^= 1
    path.write_bytes(raw)
    result = tidecast(data_dir, "verify", "orders")
    assert result.exit_code == 1
    where = lay.SEGMENT_HEADER_BYTES + 3 * length
    assert f"orders queue 1 token 9: {path} at byte {where}: its checksum is wrong" in (
        result.output
    )
    (report,) = json.loads(tidecast(data_dir, "verify", "--queue", "1", "--json").output)
    assert report["next_token"] == 1200
    assert [p["token"] for p in report["problems"]] == [9]


def test_verify_takes_a_damaged_length_in_the_newest_segment_for_no_tail(data_dir: Path) -> None:
    path = max(queue_directory(data_dir, "orders", 1).glob("*.log"))
    raw = bytearray(path.read_bytes())
    length = int.from_bytes(raw[64:68], "little")
    raw[lay.SEGMENT_HEADER_BYTES + 2 * length + 3] ^= 0x40
    path.write_bytes(raw)
    result = tidecast(data_dir, "verify", "orders")
    assert result.exit_code == 1
    assert "2 queues, 2397 records" in result.output, "all but those of the one batch"
    assert "its length is none a batch can have" in result.output


def test_verify_finds_records_that_are_there_twice(data_dir: Path) -> None:
    with opened(queue_directory(data_dir, "orders", 0)) as log:
        put(log, b"again", producer=7, base_seq=5, epoch=2)
    result = tidecast(data_dir, "verify", "--queue", "0")
    assert result.exit_code == 1
    assert "sequence 5 of producer 7 is there already (up to 1200)" in result.output


def test_a_tail_that_is_being_written_is_no_problem(data_dir: Path) -> None:
    directory = queue_directory(data_dir, "orders", 0)
    last = max(directory.glob("*.log"))
    with last.open("ab") as file:
        file.write(bytes(50))
    result = tidecast(data_dir, "verify")
    assert result.exit_code == 0
    assert "50 bytes behind the last batches" in result.output
