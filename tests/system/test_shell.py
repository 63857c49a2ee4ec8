"""`pub` and `sub` as users of kcat, redis-cli and nats know them, on one running engine."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.conftest import Eventually
from tests.support.lab import Lab, Platform, open_lab, topology
from tests.support.nursery import Nursery
from tests.support.ports import free_port
from tests.support.process import Text

from tidecast.cli.messages.reading import POLL_MESSAGES
from tidecast.node.consumers.lists import ROWS_MAX


class Shell(NamedTuple):
    """One engine with a gateway; each test has topics of its own."""

    platform: Platform
    server: str
    token: str

    def run(self, *arguments: str, code: int = 0, remote: bool = False, stdin: str = "") -> Text:
        """A command to its end."""
        lab = self.platform.lab
        where = (
            ("--server", self.server, "--token", self.token)
            if remote
            else ("--data-dir", str(self.platform.directory))
        )
        options = {}
        if stdin:
            at = lab.directory / "stdin"
            at.write_text(stdin)
            options = {"stdin": at.open("rb")}
        done = lab.run(*arguments, *where, check=False, **options)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def lines(self, *arguments: str, remote: bool = False) -> list[str]:
        """The lines that a command writes."""
        return self.run(*arguments, remote=remote).stdout.splitlines()

    def durable(self, topic: str, *messages: str, queues: int = 1) -> None:
        """A durable topic with messages ``key:payload``."""
        self.run("topic", "create", topic, "--mode", "durable", "--queues", str(queues))
        if messages:
            text = "\n".join(messages)
            self.run("pub", topic, "-", "--key-from", "::", "--ack", "durable", stdin=text)


def shell_of(lab: Lab, settings: Any) -> Shell:
    """A started engine with a gateway."""
    platform, port = lab.platform(settings, start=False), free_port()
    platform.engine = lab.spawn("engine", "--gateway", f"127.0.0.1:{port}", platform=platform)
    assert "ready" in platform.engine.line()
    token = (platform.directory / "gateway.token").read_text().strip()
    return Shell(platform, f"tidecast://127.0.0.1:{port}", token)


@pytest.fixture(scope="module")
def shell(nursery: Nursery) -> Iterator[Shell]:
    with open_lab(nursery) as lab:
        yield shell_of(lab, topology())


# --- pub ------------------------------------------------------------------------------------------


def test_keys_come_from_the_input(shell: Shell) -> None:
    shell.durable("keyed", "a:1", "b:2:3")
    shell.run(
        "pub",
        "keyed",
        "-",
        "--key-from",
        "customer.id",
        "--ack",
        "durable",
        stdin='{"customer": {"id": 7}}\n{"customer": {"id": "x"}}\n',
    )
    dump = ("sub", "keyed", "--from", "earliest", "--until-end", "--format", "%k|%s\\n")
    assert shell.lines(*dump) == [
        "a|1",
        "b|2:3",
        '7|{"customer": {"id": 7}}',
        'x|{"customer": {"id": "x"}}',
    ]
    for bad, problem in (("id", "has no field id"), ("::", "has no separator ':'")):
        said = shell.run("pub", "keyed", "-", "--key-from", bad, stdin="{}\n", code=1).stderr
        assert f"--key-from: message 1 {problem}: '{{}}'" in said
    assert (
        "is not JSON"
        in shell.run("pub", "keyed", "-", "--key-from", "id", stdin="text\n", code=1).stderr
    )
    for bad in (":", "a..b"):
        assert (
            "allowed are :SEP"
            in shell.run("pub", "keyed", "-", "--key-from", bad, stdin="x\n", code=2).stderr
        )


def test_a_producer_that_sends_again_is_stored_once(shell: Shell) -> None:
    shell.durable("once")
    again = ("pub", "once", "--message", "1", "--message", "2", "--producer", "p", "--first-seq",
             "1", "--ack", "durable", "--json")  # fmt: skip
    for _ in range(2):
        said = json.loads(shell.run(*again).stdout)
        assert (said["topic"], said["messages"]) == ("once", 2)
    assert shell.lines("sub", "once", "--from", "earliest", "--until-end") == ["1", "2"]
    stderr = shell.run("pub", "once", "--message", "x", "--first-seq", "1", code=2).stderr
    assert "--producer" in stderr


def test_ack_durable_is_refused_before_anything_is_sent(shell: Shell) -> None:
    shell.run("topic", "create", "fleeting")
    stderr = shell.run("pub", "fleeting", "--message", "x", "--ack", "durable", code=1).stderr
    assert "topic fleeting is live" in stderr
    assert "published" not in stderr


def test_time_stamps_and_headers(shell: Shell) -> None:
    shell.durable("stamped")
    for stamp in ("2026-01-31T12:00Z", "@1700000000.5", "-1h", "now"):
        shell.run(
            "pub",
            "stamped",
            "--message",
            stamp,
            "--timestamp",
            stamp,
            "--header",
            "a=b",
            "--header",
            "c=d",
            "--ack",
            "durable",
        )
    rows = [
        line.split()
        for line in shell.lines(
            "sub", "stamped", "--from", "0", "--until-end", "--format", "%T %h\\n"
        )
    ]
    now_ms = time.time() * 1000
    assert [row[0] for row in rows[:2]] == ["1769860800000", "1700000000500"]
    assert [row[1] for row in rows] == ["a=b,c=d"] * 4
    assert abs(int(rows[2][0]) - (now_ms - 3_600_000)) < 60_000
    assert abs(int(rows[3][0]) - now_ms) < 60_000
    stderr = shell.run("pub", "stamped", "--message", "x", "--timestamp", "soon", code=2).stderr
    assert "--timestamp" in stderr
    assert "-1h before" in stderr


@pytest.mark.parametrize("remote", [False, True], ids=["local", "gateway"])
def test_messages_are_delivered_at_a_time(shell: Shell, remote: bool) -> None:
    topic = f"later{int(remote)}"
    shell.durable(topic)
    for when in (("--deliver-in", "2s"), ("--deliver-at", f"@{time.time() - 60:.3f}")):
        shell.run("pub", topic, "--message", when[0], *when, "--ack", "durable", remote=remote)
    shell.run("pub", topic, "--message", "in an hour", "--deliver-in", "1h", remote=remote)
    found = [
        json.loads(line)
        for line in shell.lines(
            "sub", topic, "--subscription", "x", "--count", "2", "--json", remote=remote
        )
    ]
    assert {each["data"] for each in found} == {"--deliver-in", "--deliver-at"}
    assert all("headers" not in each for each in found)
    assert all(each["deliver_at_ns"] <= time.time_ns() for each in found)
    assert shell.lines("sub", topic, "--from", "earliest", "--until-end")[-1] == "in an hour"
    table = shell.run("subscription", "show", topic, "x").stdout
    assert "scheduled" in table
    both = shell.run(
        "pub", topic, "--message", "x", "--deliver-in", "1s", "--deliver-at", "@1", code=2
    )
    assert "--deliver-in and --deliver-at: give one of them" in both.stderr
    far = shell.run("pub", topic, "--message", "x", "--deliver-in", "400d", code=1, remote=remote)
    assert "deliver_in: 34560000.0: allowed are 0 to 31,536,000 s (365 days)" in far.stderr
    shell.run("topic", "create", f"{topic}-live")
    live = shell.run("pub", f"{topic}-live", "--message", "x", "--deliver-in", "1s", code=1)
    assert f"deliver_in: topic {topic}-live is live" in live.stderr


@pytest.mark.parametrize("remote", [False, True], ids=["local", "gateway"])
def test_scheduled_records_are_listed_and_cancelled(shell: Shell, remote: bool) -> None:
    topic = f"planned{int(remote)}"
    shell.durable(topic)
    shell.run("subscription", "create", topic, "x")
    none = shell.run("queue", "scheduled", topic, remote=remote).stdout
    assert "no scheduled records" in none
    for key in ("ada", "bob", "cy"):
        shell.run("pub", topic, "--message", key, "--key", key, "--deliver-in", "1h")
    shell.run("pub", topic, "--message", "now", "--ack", "durable")
    rows = json.loads(shell.run("queue", "scheduled", topic, "--json", remote=remote).stdout)
    assert sorted(row["size"] for row in rows) == [2, 3, 3]
    table = shell.run("queue", "scheduled", topic, "--key", "bob", remote=remote).stdout
    assert "bob" in table
    assert "ada" not in table
    planned = shell.run("queue", "cancel", topic, "--all", "--dry-run", remote=remote).stdout
    assert f"x of {topic}: 3 would be cancelled" in planned
    done = shell.run("queue", "cancel", topic, "--key", "ada", remote=remote).stdout
    assert f"x of {topic}: 1 cancelled" in done
    place = f"{rows[0]['queue']}:{rows[0]['token']}"
    options = ("--record", place, "--record", place, "--json")
    found = json.loads(shell.run("queue", "cancel", topic, *options, remote=remote).stdout)
    assert (found["records"], len(found["subscriptions"])) == (1, 1)
    both = shell.run("queue", "cancel", topic, "--all", "--key", "a", code=2).stderr
    assert "choose records by --record" in both
    wrong = shell.run("queue", "cancel", topic, "--record", "17", code=2).stderr
    assert "write QUEUE:OFFSET, as in 0:17" in wrong
    missing = shell.run("queue", "cancel", topic, "--record", "0:99", code=1, remote=remote).stderr
    assert "offset 99 of queue 0: allowed 0 to" in missing


@pytest.mark.parametrize("remote", [False, True], ids=["local", "gateway"])
def test_a_new_topic_is_reported_with_its_near_name(shell: Shell, remote: bool) -> None:
    shell.run("topic", "create", "prices", "--if-missing")
    name = "prizes.remote" if remote else "prizes"
    shell.run("topic", "create", "prices.remote", "--if-missing")
    said = shell.run("pub", name, "--message", "x", remote=remote).stderr
    assert f"warning: topic {name} is new (did you mean {name.replace('z', 'c')}?)" in said
    assert "warning" not in shell.run("pub", name, "--message", "x", remote=remote).stderr
    read = name.replace("z", "ic")
    for known in (False, True):  # `sub` creates it
        said = shell.run("sub", read, "--timeout", "0.1s", code=1, remote=remote).stderr
        near = f"warning: topic {read} is new (did you mean {read.replace('ii', 'i')}?)"
        assert (near in said) is not known
    assert "warning" not in shell.run("sub", "*.none", "--timeout", "0.1s", code=1).stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--message", "x", "--raw"), "--raw"),
        (("--message", "x", "--split", "none"), "--split none"),
        (("-", "--split", "none", "--raw"), "--raw"),
        (("--message", "x", "--key", "a", "--key-from", ":b"), "--key and --key-from"),
    ],
)
def test_options_of_pub_that_would_do_nothing_are_refused(
    shell: Shell, arguments: tuple[str, ...], named: str
) -> None:
    assert named in shell.run("pub", "unused", *arguments, code=2).stderr


def test_a_terminal_shows_progress(shell: Shell, tmp_path: Path) -> None:
    long = tmp_path / "long"
    long.write_bytes(b"x" * 99 + b"\n" + b"y" * 3_000_000)
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "tidecast.cli",
        "pub",
        "progress",
        str(long),
        "--data-dir",
        str(shell.platform.directory),
        "--channel",
        "large",
    ]
    done = subprocess.run(command, stderr=theirs, env=None, timeout=60, check=False)
    said = b""
    while b"published" not in said:
        said += os.read(ours, 65536)
    assert done.returncode == 0
    assert b"long" in said
    assert "━".encode() in said


# --- sub ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("remote", [False, True], ids=["local", "gateway"])
def test_the_log_is_read_without_a_subscription(shell: Shell, remote: bool) -> None:
    topic, before = f"kept.{remote}", shell.lines("subscription", "list")
    shell.durable(topic, "a:1", "b:2", "c:3", "d:4", queues=2)
    read = ("sub", topic, "--until-end", "--quiet")
    rows = [
        json.loads(line)
        for line in shell.lines(*read, "--from", "earliest", "--json", remote=remote)
    ]
    assert sorted(row["data"] for row in rows) == ["1", "2", "3", "4"]
    for queue in (0, 1):
        mine = [row["token"] for row in rows if row["queue"] == queue]
        assert mine == sorted(mine)
    assert [row["timestamp_ns"] for row in rows] == sorted(row["timestamp_ns"] for row in rows)
    assert shell.lines(*read, "--from", "-1h", "--count", "3", remote=remote) == [
        row["data"] for row in rows[:3]
    ]
    assert shell.lines(*read, "--from", "now", remote=remote) == []
    past = ("--from", "earliest", "--until", "-1h")
    assert shell.lines("sub", topic, *past, remote=remote) == []
    first = shell.lines(*read, "--from", "0:1", "--format", "%p:%o\\n", remote=remote)
    assert "0:0" not in first
    assert "no topic" in shell.run("sub", "kept.flase", "--from", "-1h", code=1).stderr
    assert shell.lines("subscription", "list") == before


@pytest.mark.parametrize("remote", [False, True], ids=["local", "gateway"])
def test_nothing_of_a_long_log_is_left_out(shell: Shell, remote: bool) -> None:
    topic, numbers = f"long.{remote}", range(2 * POLL_MESSAGES + 100)
    shell.run("topic", "create", topic, "--mode", "durable", "--queues", "2")
    text = "".join(f"{number % 7}:{number}\n" for number in numbers)
    shell.run("pub", topic, "-", "--key-from", "::", "--ack", "durable", stdin=text)
    found = shell.lines("sub", topic, "--from", "earliest", "--until-end", remote=remote)
    assert sorted(map(int, found)) == list(numbers)


def test_what_is_appended_meanwhile_is_read_too(shell: Shell) -> None:
    shell.durable("tailed", "a:1")
    tail = shell.platform.lab.spawn(
        "sub", "tailed", "--from", "earliest", "--count", "2", platform=shell.platform
    )
    assert tail.line() == "1"
    shell.run("pub", "tailed", "--message", "2")
    assert tail.line() == "2"
    assert tail.code() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("wrong", "--from", "5"), 1, "no topic wrong"),
        (("alive", "--from", "-1h"), 1, "topic alive is live"),
        (("alive.*", "--from", "-1h"), 2, "a pattern"),
        (("wrong", "--from", "yesterday"), 2, "allowed are earliest, latest"),
        (("two", "--from", "1"), 2, "such as 0:1,1:1"),
        (("two", "--from", "7:1"), 1, "has queues [0, 1], no 7"),
        (("two", "--from", "0:99"), 1, "sequence 99 is not there yet"),
        (("two", "--from", "0:0", "--on-gap", "skip"), 2, "--on-gap"),
        (("two", "--subscription", "s", "--untethered"), 2, "--untethered"),
        (("two", "--subscription", "s", "--until", "now"), 2, "--until"),
        (("two", "--format", "%o"), 2, "%o"),
        (("two", "--format", "%y"), 2, "%y"),
        (("two", "--format", "\\q"), 2, "\\q"),
        (("two", "--json", "--raw"), 2, "--json and --raw"),
        (("two", "--json", "--keys"), 2, "--json ignores --keys"),
    ],
)
def test_what_sub_refuses(shell: Shell, arguments: tuple[str, ...], code: int, named: str) -> None:
    shell.run("topic", "create", "two", "--mode", "durable", "--queues", "2", "--if-missing")
    shell.run("topic", "create", "alive", "--if-missing")
    stderr = shell.run("sub", *arguments, code=code).stderr
    assert named in stderr
    assert "Traceback" not in stderr


def test_live_messages_in_columns_until_a_time(shell: Shell, eventually: Eventually) -> None:
    spawn = shell.platform.lab.spawn
    reading = spawn(
        "sub", "md.*", "--topics", "--keys", "--headers", "--count", "1", platform=shell.platform
    )
    ending = spawn("sub", "md.*", "--until", "+300ms", platform=shell.platform)
    eventually(lambda: "subscribed" in reading.log.read_text(), "the subscription")
    shell.run("pub", "md.eu", "--message", "1.5", "--key", "bund", "--header", "a=b")
    assert reading.line() == "md.eu\tbund\ta=b\t1.5"
    assert reading.code() == 0
    assert ending.code() == 0


def test_a_terminal_shows_no_control_characters(shell: Shell) -> None:
    shell.durable("escapes", "k:\x1b[2Jgone")
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "tidecast.cli",
        "sub",
        "escapes",
        "--from",
        "0",
        "--count",
        "1",
        "--data-dir",
        str(shell.platform.directory),
    ]
    subprocess.run(command, stdout=theirs, stderr=subprocess.DEVNULL, timeout=60, check=True)
    assert os.read(ours, 65536) == b"\\x1b[2Jgone\r\n"


# --- the same words elsewhere ---------------------------------------------------------------------


def test_places_of_a_subscription(shell: Shell) -> None:
    shell.durable("placed", "a:1", "a:2", "a:3")
    shell.run("subscription", "create", "placed", "s", "--start", "latest", "--ack-wait", "2m")
    shown = json.loads(shell.run("subscription", "show", "placed", "s", "--json").stdout)
    assert shown["ack_wait_s"] == 120.0
    for place, after in (("-1h", 0), ("0:2", 2), ("now", 3), ("earliest", 0)):
        (row,) = json.loads(
            shell.run("subscription", "seek", "placed", "s", "--to", place, "--json").stdout
        )
        assert row["after"] == after, place
    seek = ("subscription", "seek", "placed", "s", "--to", "1")
    assert "such as 0:1" in shell.run(*seek, code=2).stderr
    (row,) = json.loads(shell.run(*seek, "--queue", "0", "--json").stdout)
    assert row["after"] == 1


def test_durations_of_a_topic(shell: Shell) -> None:
    made = json.loads(
        shell.run(
            "topic",
            "create",
            "lasting",
            "--mode",
            "durable",
            "--retention-s",
            "7d",
            "--linger-us",
            "2ms",
            "--json",
        ).stdout
    )
    assert (made["retention_s"], made["linger_us"]) == (604_800.0, 2000)
    assert (
        "whole numbers of us"
        in shell.run("topic", "edit", "lasting", "--linger-us", "1.5", code=2).stderr
    )


# --- hosts without an engine ----------------------------------------------------------------------


def test_topics_are_managed_from_afar(shell: Shell) -> None:
    def afar(*arguments: str, code: int = 0) -> Text:
        return shell.run(*arguments, remote=True, code=code)

    made = json.loads(
        afar(
            "topic",
            "create",
            "far.eu",
            "--mode",
            "durable",
            "--queues",
            "2",
            "--label",
            "team=a",
            "--json",
        ).stdout
    )
    assert (made["queues"], made["labels"]) == (2, {"team": "a"})
    assert f"at {shell.server}" in afar("topic", "edit", "far.eu", "--retention-s", "1d").stdout
    here = json.loads(shell.run("topic", "show", "far.eu", "--json").stdout)
    assert here == json.loads(afar("topic", "show", "far.eu", "--json").stdout)
    assert here["retention_s"] == 86_400.0
    assert "far.eu" in (shell.platform.directory / "topology.yaml").read_text()
    assert [row["name"] for row in json.loads(afar("topic", "list", "far.*", "--json").stdout)] == [
        "far.eu"
    ]
    rows = json.loads(afar("queue", "list", "far.eu", "--json").stdout)
    assert [(row["topic"], row["queue"]) for row in rows] == [("far.eu", 0), ("far.eu", 1)]
    assert rows == json.loads(shell.run("queue", "list", "far.eu", "--json").stdout)
    assert "exists already" in afar("topic", "create", "far.eu", code=1).stderr
    assert (
        "retention_s: -5.0" in afar("topic", "edit", "far.eu", "--retention-s", "-5", code=1).stderr
    )
    for command in ("topic show", "queue list"):
        stderr = afar(*command.split(), "fra.eu", code=1).stderr
        assert "fra.eu" in stderr
        assert "did you mean far.eu?" in stderr
    deleted = json.loads(afar("topic", "delete", "far.eu", "--yes", "--json").stdout)
    assert deleted == {"deleted": "far.eu"}
    assert "no topic far.eu" in shell.run("topic", "show", "far.eu", code=1).stderr


def test_a_long_list_comes_in_pages(nursery: Nursery) -> None:
    names = sorted(f"page.{number}" for number in range(ROWS_MAX + 20))
    with open_lab(nursery) as lab:
        shell = shell_of(lab, topology(topics=[{"name": name} for name in names]))
        for remote in (False, True):
            rows = json.loads(shell.run("topic", "list", "--json", remote=remote).stdout)
            assert [row["name"] for row in rows] == names


def test_top_from_afar(shell: Shell) -> None:
    client = shell.platform.connect()
    subscription, publisher = client.subscribe("watched"), client.publisher("watched")
    publisher.publish_batch([bytes(1000)] * 50, flush=True).check()
    for _ in range(50):
        subscription.next(timeout=10.0)
    top = ("top", "--once", "--interval", "100ms")
    seen = json.loads(shell.run(*top, "--json", remote=True).stdout)
    (row,) = [each for each in seen["publications"] if each["topic"] == "watched"]
    assert row["packets_sent"] >= 50
    here = json.loads(shell.run(*top, "--json").stdout)
    assert (seen["node"], seen["receivers"]) == (here["node"], here["receivers"])
    assert seen.keys() == here.keys()
    assert "watched" in shell.run(*top, remote=True).stdout


def test_queues_are_inspected_from_afar(shell: Shell) -> None:
    shell.durable("seen.afar", *(f"k:{n}" for n in range(20)))
    inspect = ("queue", "inspect", "seen.afar", "--json")
    batches = json.loads(shell.run(*inspect, remote=True).stdout)
    assert batches == json.loads(shell.run(*inspect).stdout)
    assert sum(each["records"] for each in batches) == 20
    (last,) = json.loads(shell.run(*inspect, "--offset", "19", remote=True).stdout)
    assert last["token"] <= 19 < last["token"] + last["records"]
    for number, text in (("7", "queue 7 of seen.afar: this node has the queues [0]"),):
        assert (
            text in shell.run("queue", "inspect", "seen.afar", number, remote=True, code=1).stderr
        )
    stderr = shell.run("queue", "inspect", "seen.afar", "--token", "19", code=2).stderr
    assert "--token is that of a --server; --offset says which batches" in stderr
    refused = shell.platform.lab.run("queue", "verify", "--server", shell.server, check=False)
    assert refused.returncode == 2
    assert "verify reads the files of queues: run it on their host" in refused.stderr


def test_near_names(shell: Shell) -> None:
    shell.durable("billing")
    shell.run("subscription", "create", "billing", "invoices")
    for arguments, meant in [
        (("subscription", "show", "billing", "invoice"), "invoices"),
        (("subscription", "show", "biling", "invoices"), "billing"),
        (("queue", "list", "biling"), "billing"),
        (("topic", "show", "biling"), "billing"),
        (("topic", "delete", "biling", "--yes"), "billing"),
        (("sub", "biling", "--from", "-1h"), "billing"),
        (("sub", "biling", "--subscription", "invoices"), "billing"),
    ]:
        assert f"did you mean {meant}?" in shell.run(*arguments, code=1).stderr, arguments
    assert "did you mean topic?" in shell.run("topics", code=2).stderr


def test_one_place_is_asked(shell: Shell) -> None:
    stderr = shell.run("topic", "list", "--server", shell.server, code=2).stderr
    assert "--data-dir and --server" in stderr
    lab, other = shell.platform.lab, {"TIDECAST_SERVER": "tidecast://127.0.0.1:1"}
    said = lab.run(
        "topic", "list", "--data-dir", str(shell.platform.directory), env=dict(os.environ) | other
    )
    assert said.returncode == 0, "what is given counts more than the environment"
