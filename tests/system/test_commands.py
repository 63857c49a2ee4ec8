"""The commands on a running engine, and what they say when something is wrong."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest
from tests.conftest import Eventually
from tests.support.feeds import made
from tests.support.lab import Lab, Platform, multicast, topology
from tests.support.ports import free_port

from tidecast.errors import ConfigError, NoResponders


def _one_line(lab_output: str) -> str:
    lines = lab_output.strip().splitlines()
    assert len(lines) == 1, lab_output
    assert lines[0].startswith("error: ")
    return lines[0]


def _refused(platform: Platform, *arguments: str) -> str:
    done = platform.run(*arguments, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return _one_line(done.stderr)


def _nothing_left(platform: Platform) -> None:
    assert platform.shared() == []
    left = {each.name for each in platform.directory.iterdir()}
    assert left <= {"topology.yaml", "engine.lock", "engine.log", "gateway.token"}, left


def test_top_once_as_json(lab: Lab) -> None:
    left, right = lab.pair()
    subscription, publisher = right.connect().subscribe("seen"), left.connect().publisher("seen")
    publisher.publish_batch([bytes(1000)] * 500, flush=True).check()
    for _ in range(500):
        subscription.next(timeout=10.0)
    sent, received = left.json("top", "--once"), right.json("top", "--once")
    (publication,) = sent["publications"]
    assert publication["topic"] == "seen"
    assert publication["packets_sent"] >= 500
    (image,) = received["images"]
    assert image["node"] == "left"
    assert image["packets_received"] >= 500
    assert {agent["kind"] for agent in sent["agents"]} >= {"sender", "receiver"}
    assert "seen" in left.run("top", "--once").stdout


def test_what_an_adapter_keeps_is_listed_with_its_kind(lab: Lab) -> None:
    platform = lab.platform(start=False)
    named = f"feed={made.__module__}:{made.__name__}"
    platform.engine = lab.spawn("engine", "--adapter", named, platform=platform)
    assert "ready" in platform.engine.line()
    rows = platform.json("queue", "list")
    assert [(row["topic"], row["queue"], row["adapter"]) for row in rows] == [
        ("feed", 0, "generator"),
        ("feed", 1, "generator"),
    ]
    assert {(row["earliest_token"], row["next_token"]) for row in rows} == {(0, 50)}
    assert platform.json("queue", "list", "feed") == rows
    assert "(adapter generator)" in platform.run("queue", "list").stdout
    feed = {"name": "feed", "mode": "durable", "queues": 2, "adapter": "generator"}
    feed |= {"state": "open", "detail": ""}
    assert feed in platform.json("topic", "list")
    assert "adapter generator" in platform.run("topic", "list", "feed").stdout
    assert platform.json("topic", "show", "feed") == feed


def test_queues_of_an_adapter_that_waits_are_refused_with_its_reason(lab: Lab) -> None:
    platform = lab.platform(start=False)
    away = f"127.0.0.1:{free_port()}"
    feed = f"feed=kafka://{away}/orders"
    platform.engine = lab.spawn("engine", "--adapter", feed, platform=platform)
    assert "ready" in platform.engine.line()
    error = _refused(platform, "queue", "list", "feed")
    assert "topic feed has no queues yet: adapter kafka waits for its system" in error
    assert away in error
    assert platform.json("queue", "list") == []


def test_a_node_that_publishes_nothing_is_addressed_by_name(
    lab: Lab, eventually: Eventually
) -> None:
    left, right = lab.pair()
    subscription, publisher = right.connect().subscribe("seen"), left.connect().publisher("seen")

    def addressed() -> bool:
        try:
            publisher.publish(b"to you", to="right", flush=True)
        except NoResponders:  # it has reported nothing yet
            return False
        return True

    eventually(addressed, "left to know right by its reports")
    assert bytes(subscription.next(timeout=10.0).data) == b"to you"


def test_topics_of_a_running_engine(lab: Lab) -> None:
    platform = lab.platform()
    made = platform.json("topic", "create", "md.eu", "--history-bytes", "1MiB", "--flow", "rate")
    assert made["history_bytes"] == 1 << 20
    assert "exists already" in _refused(platform, "topic", "create", "md.eu")
    assert [t["name"] for t in platform.json("topic", "list", "md.>")] == ["md.eu"]
    assert platform.json("topic", "edit", "md.eu", "--linger-us", "100")["linger_us"] == 100
    assert "--recreate" in _refused(platform, "topic", "edit", "md.eu", "--flow", "min")
    assert platform.json("topic", "edit", "md.eu", "--flow", "min", "--recreate")["flow"] == "min"
    assert platform.json("topic", "show", "md.eu")["linger_us"] == 100
    platform.stop()
    platform.start()
    assert platform.json("topic", "show", "md.eu")["linger_us"] == 100
    platform.run("topic", "delete", "md.eu", "--yes")
    assert "no topic" in _refused(platform, "topic", "show", "md.eu")
    assert "no topic" in _refused(platform, "topic", "delete", "md.eu", "--yes")
    assert "md.eu" not in (platform.directory / "topology.yaml").read_text()


def test_doctor_as_json(lab: Lab) -> None:
    found = lab.platform().json("doctor")
    assert found["failed"] == 0
    assert {each["check"] for each in found["findings"]} >= {"shared memory", "engine"}


def test_faults_are_shown_and_cleared(lab: Lab) -> None:
    platform = lab.platform()
    shown = platform.json("faults", "set", "--drop", "0.5", "--delay", "2ms")
    assert shown["multicast"]["drop"] == 0.5
    assert platform.json("faults", "clear")["multicast"]["drop"] == 0.0
    locked = lab.platform(topology(multicast(allow_faults=False)))
    assert "allow_faults" in _refused(locked, "faults", "set", "--drop", "0.1")


@pytest.mark.parametrize("command", [("engine",), ("up", "--detach", "--no-control")])
def test_port_in_use(lab: Lab, command: tuple[str, ...]) -> None:
    wire = multicast()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((wire["group"], wire["port"] + 1))
        platform = lab.platform(topology(wire), start=False)
        said = _refused(platform, *command)
    assert "in use" in said
    assert str(wire["port"] + 1) in said
    _nothing_left(platform)
    platform.start()
    platform.stop()


def test_unicast_port_of_another_engine(lab: Lab) -> None:
    wire = {"name": "wire", "kind": "udp-unicast", "port": free_port(), "peers": []}
    lab.platform(topology(wire))
    second = lab.platform(topology(wire), start=False)
    assert "in use" in _refused(second, "engine")
    _nothing_left(second)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("transports: [", "line 1"),
        ("transprots: []\n", "transprots"),
        ("transports: [{name: a, kind: udp-multicast, packet_bytes: 70000}]", "packet_bytes"),
        ("transports: [{name: a, kind: udp-multicast, interface: nosuch0}]", "nosuch0"),
        ("transports: [{name: a, kind: udp-unicast, interface: 10.99.99.99}]", "10.99.99.99"),
        ("topics: [{name: 'not a name'}]", "not a name"),
        ("topics: [{name: a, transport: b}]", "transport"),
    ],
)
def test_bad_topology(lab: Lab, text: str, words: str) -> None:
    platform = lab.platform(None, start=False)
    (platform.directory / "topology.yaml").write_text(text)
    assert words in _refused(platform, "engine")
    _nothing_left(platform)


def test_second_engine_of_a_data_directory(lab: Lab) -> None:
    platform = lab.platform()
    assert "already" in _refused(platform, "engine")
    assert len(platform.shared()) == 1
    platform.json("top", "--once")


def test_full_shared_memory(lab: Lab) -> None:
    """A history larger than /dev/shm: said, nothing left of it, the engine continues."""
    if shutil.disk_usage("/dev/shm").free > 30 << 30:
        pytest.skip("/dev/shm is too large to be filled")
    platform = lab.platform(topology(multicast(packet_bytes=65_000)))
    platform.run("topic", "create", "huge", "--history-bytes", "60GiB")
    before = _sizes(platform)
    said = _refused(platform, "pub", "huge", "--message", "x")
    assert "no room" in said
    assert "history_bytes" in said
    assert _sizes(platform) == before
    assert platform.overview().publications == []
    platform.run("pub", "other", "--message", "x", "--quiet")
    platform.stop()


def test_history_of_more_packets_than_a_ring_has(lab: Lab) -> None:
    """Refused, not cut silently."""
    platform = lab.platform()
    said = _refused(platform, "topic", "create", "huge", "--history-bytes", "2GiB")
    assert "history_bytes" in said
    with pytest.raises(ConfigError, match="history_bytes"):
        platform.connect().publisher("plain", history_bytes=2 << 30)
    for pattern in ("plain", "any.*"):
        with pytest.raises(ConfigError, match="receive_bytes"):
            platform.connect().subscribe(pattern, receive_bytes=2 << 30)
    assert platform.overview().publications == []


def _sizes(platform: Platform) -> dict[str, int]:
    (shared,) = platform.shared()
    return {each.name: each.stat().st_size for each in shared.iterdir()}


def test_commands_without_an_engine(lab: Lab, tmp_path: Path) -> None:
    platform = lab.platform(start=False)
    for command in (
        ("pub", "a", "--message", "x"),
        ("sub", "a"),
        ("top", "--once"),
        ("faults", "show"),
    ):
        said = _refused(platform, *command)
        assert "no engine runs" in said
        assert "tidecast up" in said
    assert "no flight recorder" in _refused(platform, "recorder", "--json")
    _nothing_left(platform)


def test_wrong_arguments_on_an_engine(lab: Lab, eventually: Eventually) -> None:
    platform = lab.platform()
    assert "no file" in _refused(platform, "pub", "a", "/nowhere/at/all")
    assert "directory" in _refused(platform, "pub", "a", "/tmp")
    assert "topic name" in _refused(platform, "pub", "a b", "--message", "x")
    assert "pattern" in _refused(platform, "sub", "a.>.b")
    assert "no message" in _refused(platform, "sub", "a", "--timeout", "0.1", "--quiet")
    assert platform.run("pub", "a", check=False).returncode == 0  # an empty input
    assert platform.run("topic", "edit", "a", check=False).returncode == 2
    eventually(lambda: platform.overview().publications == [], "all publications to end")


def test_json_output_of_sub_and_until_end(lab: Lab) -> None:
    platform = lab.platform()
    reading = lab.spawn("sub", "a", "--json", "--until-end", platform=platform)
    while "subscribed" not in reading.log.read_text():
        assert reading.running
    platform.run("pub", "a", "--message", "hello", "--key", "k", "--header", "h=v", "--count", "2")
    said = [json.loads(reading.line()) for _ in range(2)]
    assert [(m["data"], m["key"], m["headers"]) for m in said] == [("hello", "k", {"h": "v"})] * 2
    assert reading.code() == 0


def test_sub_reads_what_queues_keep_and_goes_on_behind_it(lab: Lab) -> None:
    platform = lab.platform()
    platform.run("topic", "create", "kept", "--mode", "durable")
    for text in ("first", "second"):
        platform.run("pub", "kept", "--message", text, "--key", "k")
    dump = ("sub", "kept", "--subscription", "shell", "--from", "earliest", "--until-end")
    rows = [json.loads(line) for line in platform.run(*dump, "--json").stdout.splitlines()]
    assert [(row["data"], row["token"], row["attempts"]) for row in rows] == [
        ("first", 0, 1),
        ("second", 1, 1),
    ]
    platform.run("pub", "kept", "--message", "third")
    assert platform.run(*dump, "--raw").stdout == "third"
