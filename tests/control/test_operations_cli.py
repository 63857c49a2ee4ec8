"""The command that an operation shows is one that the command line accepts."""

from __future__ import annotations

import shlex
from typing import Any

import click
import pytest

from tidecast.api.start import Earliest, Time
from tidecast.cli import main
from tidecast_control.operations.service import Wanted, cli_of

START: dict[str, Any] = {"at": "earliest", "queue": None, "token": None, "time_ns": None}
TIME_NS = "1795283762635938533"
TIME_US = int(TIME_NS) // 1000


def parsed(command: str) -> tuple[str, dict[str, Any]]:
    """(command, its parameters). Raises click.UsageError."""
    program, *words = shlex.split(command)
    assert program == "tidecast"
    found: click.Command = main
    names = []
    while isinstance(found, click.Group):
        name = words.pop(0)
        names.append(name)
        inner = found.get_command(click.Context(found), name)
        assert inner is not None, command
        found = inner
    return " ".join(names), found.make_context(names[-1], words).params


@pytest.mark.parametrize(
    ("action", "request_", "params"),
    [
        ("pause", {}, {}),
        ("resume", {}, {}),
        ("seek", START, {"start": Earliest(), "queue": None}),
        ("seek", START | {"shift": -5, "queue": 2}, {"shift": -5, "queue": 2}),
        ("seek", START | {"at": "time", "time_ns": TIME_NS}, {"start": Time(TIME_US * 1000)}),
        (
            "redrive",
            {"to": "", "count_max": 7, "key": "a b", "reason": "it's"},
            {"limit": 7, "key": "a b", "reason": "it's"},
        ),
        (
            "redrive",
            {"to": "elsewhere", "count_max": 1, "where": 'headers["kind"] == "a b"'},
            {"limit": 1, "to": "elsewhere", "where": 'headers["kind"] == "a b"'},
        ),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_the_command_is_one(
    action: str, request_: dict[str, Any], params: dict[str, Any], dry_run: bool
) -> None:
    if dry_run and action in ("pause", "resume"):
        pytest.skip("these have nothing to preview")
    wanted = Wanted(action, "subscription", "billing", request_, dry_run)
    name, took = parsed(cli_of(wanted, "orders.*"))
    assert name == f"subscription {action}"
    assert took["topic"] == "orders.*"
    assert took["name"] == "billing"
    assert took.get("dry_run", False) is dry_run
    assert {key: took[key] for key in params} == params


@pytest.mark.parametrize(
    ("action", "kind", "request_"),
    [
        ("purge", "queue", {}),
        ("seek", "subscription", START | {"at": "token", "token": "5"}),
    ],
)
def test_without_a_command_none_is_shown(action: str, kind: str, request_: dict[str, Any]) -> None:
    assert cli_of(Wanted(action, kind, "orders", request_, False), "orders") == ""


@pytest.mark.parametrize(
    ("kind", "name", "number"), [("topic", "orders.eu", None), ("queue", "orders.eu:3", 3)]
)
def test_a_pause_of_a_topic_or_queue_is_a_command(kind: str, name: str, number: int | None) -> None:
    command, took = parsed(cli_of(Wanted("pause", kind, name, {}, False), ""))
    assert command == "queue pause"
    assert (took["topic"], took["number"]) == ("orders.eu", number)


@pytest.mark.parametrize(
    ("request_", "params"),
    [
        ({"everything": True, "subscription": ""}, {"everything": True}),
        (
            {"key": "a b", "where": "size > 3", "subscription": "x"},
            {"key": "a b", "where": "size > 3", "subscription": "x"},
        ),
        (
            {"messages": [{"queue": 0, "token": "17"}, {"queue": 3, "token": "0"}]},
            {"records": ((0, 17), (3, 0))},
        ),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_the_command_of_a_cancel(
    request_: dict[str, Any], params: dict[str, Any], dry_run: bool
) -> None:
    wanted = Wanted("cancel_scheduled", "topic", "orders", request_, dry_run)
    name, took = parsed(cli_of(wanted))
    assert (name, took["topic"], took["dry_run"]) == ("queue cancel", "orders", dry_run)
    assert {key: took[key] for key in params} == params
