"""Python, shell, REST, YAML and Spark have the same defaults: docs/adr/0028."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from pydantic_core import PydanticUndefined

import tidecast
from tidecast.api.link import ConsumerOptions
from tidecast.app import App
from tidecast.cli import main
from tidecast.client.admin import aio as admin_aio
from tidecast.client.admin import blocking as admin_blocking
from tidecast.client.aio import Connection as AsyncConnection
from tidecast.client.blocking import Connection
from tidecast.config.topology import TopicConfig
from tidecast.errors import ConfigError
from tidecast.node.consumers.storage import ACK_WAIT_S, MAX_DELIVER
from tidecast.testing import Network
from tidecast_control.subscriptions.schemas import SubscriptionSpec
from tidecast_control.topics.schemas import TopicSpec
from tidecast_spark.options import source_options

EARLIEST, LATEST = tidecast.Earliest(), tidecast.Latest()


def default_of(function: Callable[..., Any], name: str) -> Any:
    return inspect.signature(function).parameters[name].default


def option_of(command: str, name: str) -> click.Option:
    """An option of the shell."""
    found: Any = main
    for word in command.split():
        found = found.get_command(click.Context(found), word)
    return next(each for each in found.params if each.name == name)


@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "stream"])
def test_durable_topics_are_read_from_the_earliest_record(streaming: bool, tmp_path: Path) -> None:
    for kind in (Connection, AsyncConnection):
        assert default_of(kind.consumer, "start") == EARLIEST
    for administration in (admin_blocking.Subscriptions, admin_aio.Subscriptions):
        assert default_of(administration.create, "start") == EARLIEST
    assert default_of(App.consumer, "start") == EARLIEST
    assert ConsumerOptions().start == "earliest"
    assert option_of("subscription create", "start").default == "earliest"
    assert SubscriptionSpec(topic="t").start.at == "earliest"
    with Network() as network:
        node = network.node("a", durable=["orders"])
        node.connect().publish("orders", b"1", ack="durable")
        options = {"topic": "orders", "dataDir": str(node.data_dir)}
        assert source_options(options, streaming=streaming).starting.kind == "earliest"


def test_live_topics_are_read_from_the_latest_message() -> None:
    for kind in (Connection, AsyncConnection):
        assert default_of(kind.subscribe, "start") == LATEST
    assert default_of(App.subscriber, "start") == LATEST


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("@12", tidecast.Time(12 * 10**9)),
        ("2026-01-31T12:00Z", tidecast.Time(1_769_860_800 * 10**9)),
        ("0:17,3:9", tidecast.Tokens({0: 17, 3: 9})),
    ],
)
def test_texts_of_the_shell_are_positions(text: str, start: tidecast.Start) -> None:
    assert tidecast.Start.parse(text) == start
    option = option_of("subscription create", "start")
    assert option.type.convert(text, option, None) == start


@pytest.mark.parametrize("text", ["", "begin", "17", "0:", "0:1,", "2026-13-01", "-1", "0:1:2"])
def test_other_texts_name_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError, match=r"start: .*allowed are earliest, latest, sequences"):
        tidecast.Start.parse(text)


def test_durable_subscriptions_have_the_same_limits() -> None:
    spec, options = SubscriptionSpec(topic="t"), ConsumerOptions()
    assert spec.ack_wait_s == ACK_WAIT_S
    assert spec.max_deliver == MAX_DELIVER
    assert spec.max_in_flight == options.max_in_flight
    assert default_of(Connection.consumer, "max_in_flight") == options.max_in_flight
    assert default_of(AsyncConnection.consumer, "max_in_flight") == options.max_in_flight
    for name, value in (("ack_wait", f"{ACK_WAIT_S:g}s"), ("max_deliver", str(MAX_DELIVER))):
        assert f"[default: {value}]" in str(option_of("subscription create", name).help)


ELSEWHERE = {
    "rate_packets_per_s": "REST: null, by policy",
    "rate_bytes_per_s": "REST: null, by policy",
    "transport": "REST: an empty text is the first transport, as in YAML",
}


def test_topics_have_the_same_settings_in_yaml_and_rest() -> None:
    yaml = {f.name: f.default for f in msgspec.structs.fields(TopicConfig)}
    rest = {name: f.default for name, f in TopicSpec.model_fields.items()}
    both = (yaml.keys() & rest.keys()) - ELSEWHERE.keys()
    assert {"mode", "reliability", "flow", "on_full", "queues", "fsync", "linger_us"} <= both
    assert len(both) > 20
    assert PydanticUndefined not in rest.values()
    assert {name: rest[name] for name in both} == {name: yaml[name] for name in both}


def test_the_shell_leaves_the_settings_of_topics_to_the_engine() -> None:
    settings = {f.name for f in msgspec.structs.fields(TopicConfig)} - {"name", "id", "labels"}
    for name in settings:
        assert option_of("topic create", name).default is None, name
