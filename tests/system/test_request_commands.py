"""`tidecast request` and `tidecast reply` on a running engine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result
from tests.conftest import Eventually
from tests.support.lab import Lab, Platform
from tests.support.process import Child

from tidecast.cli import main
from tidecast.errors import NoResponders

TIMEOUT_S = 20.0


@pytest.fixture
def platform(lab: Lab) -> Platform:
    return lab.platform()


def run(platform: Platform, *arguments: str, stdin: str = "", code: int = 0) -> Result:
    result = CliRunner().invoke(
        main, [*arguments, "--data-dir", str(platform.directory)], input=stdin
    )
    assert result.exit_code == code, result.output
    return result


Reply = Callable[..., Child]


@pytest.fixture
def reply(lab: Lab, platform: Platform, eventually: Eventually) -> Reply:
    """`tidecast reply` in a process of its own."""

    def start(*arguments: str) -> Child:
        process = lab.spawn("reply", *arguments, platform=platform)
        eventually(lambda: "responding on" in process.log.read_text(), "a responder")
        return process

    return start


def test_a_command_replies(platform: Platform, reply: Reply) -> None:
    script = 'read x; [ "$x" = bad ] && { echo no luck >&2; exit 3; }; printf "$x $TIDECAST_KEY!"'
    reply("ask", "--command", script)
    assert run(platform, "request", "ask", "hello", "--key", "k").output == "hello k!\n"
    assert run(platform, "request", "ask", "-", "--raw", stdin="in").output == "in !"
    told = json.loads(run(platform, "request", "ask", "x", "--json").output)
    assert (told["topic"], told["data"]) == ("ask", "x !")
    failed = run(platform, "request", "ask", "bad", code=1)
    assert "error: topic ask: CommandFailed: exit code 3: no luck" in failed.output


def test_a_responder_writes_each_request_as_json(
    platform: Platform, lab: Lab, eventually: Eventually
) -> None:
    script = 'read x; [ "$x" = bad ] && exit 3; printf "<$x>"'
    process = lab.spawn(
        "reply",
        "ask",
        "--command",
        script,
        "--json",
        "--count",
        "3",
        platform=platform,
        stdout=subprocess.PIPE,
    )
    eventually(lambda: "responding on" in process.log.read_text(), "a responder")
    run(platform, "request", "ask", "a", "--key", "k", "--header", "h=1")
    run(platform, "request", "ask", "bad", code=1)
    run(platform, "request", "ask", "é")
    told = [json.loads(process.line()) for _ in range(3)]
    assert all(each.pop("seconds") > 0 and each.pop("session") for each in told)
    node = told[0]["node"]
    assert told == [
        {
            "topic": "ask",
            "node": node,
            "key": "k",
            "headers": {"h": "1"},
            "data": "a",
            "reply": "<a>",
        },
        {"topic": "ask", "node": node, "data": "bad", "error": "CommandFailed: exit code 3"},
        {"topic": "ask", "node": node, "data": "é", "reply": "<é>"},
    ]
    assert process.wait(TIMEOUT_S) == 0


def test_all_responders_reply(platform: Platform, reply: Reply) -> None:
    for name in ("one", "two"):
        reply("who", "--text", name)
        reply("who", "--text", "grouped", "--group", "g")
    found = run(platform, "request", "who", "", "--all").output.split()
    assert sorted(found) == ["grouped", "one", "two"]
    few = run(platform, "request", "who", "", "--all", "--max-replies", "1").output.split()
    assert len(few) == 1


def test_a_count_ends_it(platform: Platform, reply: Reply) -> None:
    replying = reply("twice", "--echo", "--count", "2")
    for word in ("a", "b"):
        assert run(platform, "request", "twice", word).output == f"{word}\n"
    assert replying.wait(TIMEOUT_S) == 0
    failed = run(platform, "request", "twice", "c", code=1)
    assert "no responder is there: start one" in failed.output
    assert "tidecast reply twice" in failed.output


def test_a_command_that_hangs_is_ended(platform: Platform, reply: Reply) -> None:
    reply("hangs", "--command", "cat; exec sleep 1000", "--timeout", "200ms")
    failed = run(platform, "request", "hangs", "x", code=1)
    assert "CommandFailed: it took longer than 0.2 s" in failed.output


def test_a_reply_that_does_not_come_is_an_error(platform: Platform) -> None:
    with platform.connect() as client, client.responder("silent"):
        late = run(platform, "request", "silent", "x", "--timeout", "100ms", code=1)
        assert "error: topic silent: no reply within 0.1 s" in late.output
        missing = run(platform, "request", "silent", "x", "--timeout", "100ms", "--all", code=1)
        assert "no reply within 0.1 s" in missing.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("request", "t", "x", "--max-replies", "2"), "give --all too"),
        (("request", "t", "x", "--json", "--raw"), "give one of them"),
        (("request", "t", "x", "--header", "a"), "NAME=VALUE"),
        (("reply", "t"), "give one of --command, --echo and --text"),
        (("reply", "t", "--echo", "--text", "x"), "give one of --command, --echo and --text"),
    ],
)
def test_usage(platform: Platform, arguments: tuple[str, ...], text: str) -> None:
    assert text in run(platform, *arguments, code=2).output


def test_sigterm_ends_it(platform: Platform, reply: Reply) -> None:
    replying = reply("stops", "--echo")
    assert replying.end() == 128 + 15, replying.log.read_text()
    with platform.connect() as client, pytest.raises(NoResponders):
        client.request("stops", b"")
