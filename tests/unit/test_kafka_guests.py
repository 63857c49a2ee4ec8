"""Clients and groups of the Kafka endpoint as operators see them, with real consumers."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient
from tests.conftest import Eventually
from tests.support.kafka import TIMEOUT_S, Served, batch_of

from tidecast.access import Scope, new_key
from tidecast.cli.topics import kafka as commands
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.errors import ConfigError, Conflict, NotFound
from tidecast.kafka.groups.administration import SAMPLED_MAX
from tidecast.kafka.groups.coordinator import Group, Member
from tidecast.kafka.groups.rows import assignment_of
from tidecast.kafka.groups.service import Offset, Stored
from tidecast.kafka.schemas import tables
from tidecast.telemetry.views import sample

TOPICS: list[dict[str, Any]] = [
    {"name": "orders", "mode": "durable", "queues": 2, "fsync_interval_ms": 2},
    {"name": "bills", "mode": "durable", "fsync_interval_ms": 2},
]
N = 40


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "node", TOPICS, groups_max=100_000)
    bare = made.bare()
    for queue in range(2):
        values = [b"v%d" % i for i in range(N // 2)]
        assert bare.produce("orders", queue, batch_of(*values))["error_code"] == 0
    assert bare.produce("bills", 0, batch_of(b"x", b"y"))["error_code"] == 0
    bare.close()
    yield made
    assert made.endpoint.counters.of("faults") == 0
    made.close()


def perform(served: Served, action: str, **arguments: Any) -> Any:
    return served.link.node.kafka.perform(f"kafka_{action}", arguments)


def commit(served: Served, group: str, **offsets: int) -> None:
    """Commit offsets without being a member: ``orders_1=5``."""
    places = [
        confluent_kafka.TopicPartition(name.rsplit("_", 1)[0], int(name.rsplit("_", 1)[1]), offset)
        for name, offset in offsets.items()
    ]
    client = AdminClient({"bootstrap.servers": served.endpoint.address})
    asked = ConsumerGroupTopicPartitions(group, places)
    client.alter_consumer_group_offsets([asked])[group].result(TIMEOUT_S)


def consumer_of(served: Served, group: str) -> confluent_kafka.Consumer:
    made = confluent_kafka.Consumer(
        {
            "bootstrap.servers": served.endpoint.address,
            "group.id": group,
            "client.id": "till",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    made.subscribe(["orders"])
    return made


def test_a_group_of_a_real_consumer_is_shown_with_members_and_lag(
    served: Served, eventually: Eventually
) -> None:
    consumer = consumer_of(served, "billing")
    got: list[Any] = []
    while len(got) < N:
        got += consumer.consume(N, TIMEOUT_S)
    marks = [confluent_kafka.TopicPartition("orders", 0, 15)]
    consumer.commit(offsets=marks, asynchronous=False)
    found = perform(served, "group", name="billing")
    assert (found["state"], found["members"], found["protocol"]) == ("Stable", 1, "range")
    assert (found["topics"], found["lag"]) == (["orders"], 5)
    born_s = (time.time_ns() - 1_700_000_000_000_000_000) / 1e9
    assert abs(found["lag_s"] - born_s) < 60
    first, second = found["offsets"]
    assert (first["queue"], first["committed"], first["end"], first["lag"]) == (0, 15, 20, 5)
    assert (second["queue"], second["committed"], second["lag"]) == (1, None, None)
    (member,) = found["consumers"]
    assert first["member"] == second["member"] == member["id"]
    assert member["assigned"] == ["orders:0", "orders:1"]
    assert (member["client_id"], member["address"], member["leader"]) == ("till", "127.0.0.1", True)

    rows = perform(served, "clients")["rows"]
    mine = [row for row in rows if row["client_id"] == "till"]
    assert mine
    assert {row["software"].split()[0] for row in mine} == {"confluent-kafka-python"}
    assert sum(row["bytes_in"] for row in mine) > 100
    assert sum(row["bytes_out"] for row in mine) > N
    assert all(row["key"] == "" and row["address"].startswith("127.0.0.1:") for row in mine)

    shown = sample(served.link.node, time.time_ns())["kafka"]
    assert shown["groups_total"] == 1
    assert shown["clients_total"] == len(rows)
    with pytest.raises(Conflict, match="group billing has 1 member"):
        perform(served, "delete_group", name="billing")
    with pytest.raises(Conflict, match="stop its consumers first"):
        perform(served, "reset_offsets", name="billing", to="earliest")
    consumer.close()
    eventually(
        lambda: perform(served, "group", name="billing")["state"] == "Empty", "the group's end"
    )
    assert perform(served, "group", name="billing")["consumers"] == []


def test_offsets_of_an_empty_group_are_reset(served: Served) -> None:
    commit(served, "g", orders_0=15, orders_1=5, bills_0=1)

    def reset(**asked: Any) -> dict[str, tuple[int | None, int]]:
        rows = perform(served, "reset_offsets", name="g", **asked)["rows"]
        return {f"{row['topic']}:{row['queue']}": (row["before"], row["after"]) for row in rows}

    def lags() -> dict[str, int]:
        rows = perform(served, "group", name="g")["offsets"]
        return {f"{row['topic']}:{row['queue']}": row["lag"] for row in rows}

    assert reset(to="latest", dry_run=True) == {
        "bills:0": (1, 2),
        "orders:0": (15, 20),
        "orders:1": (5, 20),
    }
    assert lags() == {"orders:1": 15, "orders:0": 5, "bills:0": 1}
    assert reset(shift=-7, topic="orders") == {"orders:0": (15, 8), "orders:1": (5, 0)}
    assert reset(to="offset", topic="orders", queue=1, offset=20) == {"orders:1": (0, 20)}
    assert reset(to="time", time_ns=1, topic="bills") == {"bills:0": (1, 0)}
    assert reset(to="time", time_ns=time.time_ns(), topic="bills") == {"bills:0": (0, 2)}
    assert lags() == {"orders:0": 12, "orders:1": 0, "bills:0": 0}
    assert perform(served, "group", name="g")["lag"] == 12
    assert reset(to="earliest") == {"bills:0": (2, 0), "orders:0": (8, 0), "orders:1": (20, 0)}
    consumer = consumer_of(served, "g")
    got: list[Any] = []
    while len(got) < N:
        got += consumer.consume(N, TIMEOUT_S)
    consumer.close()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"to": "offset", "topic": "orders", "queue": 0, "offset": 21}, "offset: 21: allowed are"),
        ({"to": "offset", "topic": "orders", "queue": 9, "offset": 1}, "allowed are 0 to 1 of"),
        ({"to": "offset", "topic": "orders", "queue": 0}, "offset: `to` offset and"),
        ({"to": "latest", "offset": 3}, "offset: `to` offset and"),
        ({"to": "latest", "queue": 0}, "topic: a queue is of one topic"),
        ({"to": "offset", "offset": 0}, "queue: an offset is of one queue"),
        ({}, "to: give either"),
        ({"to": "latest", "shift": 1}, "to: give either"),
        ({"to": "middle"}, "middle"),
        ({"to": "latest", "more": 1}, "more"),
    ],
)
def test_a_wrong_reset_names_the_field_and_changes_nothing(
    served: Served, asked: dict[str, Any], words: str
) -> None:
    commit(served, "g", orders_0=15)
    with pytest.raises(ConfigError, match=words):
        perform(served, "reset_offsets", name="g", **asked)
    assert perform(served, "group", name="g")["offsets"][0]["committed"] == 15


def test_what_is_not_there_is_named(served: Served) -> None:
    commit(served, "g", orders_0=15)
    for action in ("group", "delete_group"):
        with pytest.raises(NotFound, match="no group nobody"):
            perform(served, action, name="nobody")
    with pytest.raises(NotFound, match="group g has offsets of orders"):
        perform(served, "reset_offsets", name="g", to="latest", topic="bills")
    assert perform(served, "delete_group", name="g", dry_run=True)["offsets"] == 1
    assert perform(served, "delete_group", name="g") == {
        "name": "g",
        "offsets": 1,
        "topics": ["orders"],
    }
    with pytest.raises(NotFound, match="no group g"):
        perform(served, "group", name="g")


def test_a_listing_has_pages_filters_and_the_topics_that_the_caller_may_see(
    served: Served,
) -> None:
    for i in range(5):
        commit(served, f"g{i}", orders_0=i, bills_0=1)
    commit(served, "only-bills", bills_0=1)

    def names(**asked: Any) -> tuple[list[str], str | None]:
        found = perform(served, "groups", **asked)
        return [row["name"] for row in found["rows"]], found["next"]

    assert names(limit=2) == (["g0", "g1"], "g1")
    assert names(limit=2, after="g1") == (["g2", "g3"], "g3")
    assert names(limit=2, after="g3", inclusive=True) == (["g3", "g4"], "g4")
    assert names(limit=10, after="g3") == (["g4", "only-bills"], None)
    assert names(topic="orders")[0] == [f"g{i}" for i in range(5)]
    assert names(q="only")[0] == ["only-bills"]
    assert names(state="Stable")[0] == []
    assert names(within=["orders"])[0] == [f"g{i}" for i in range(5)]
    assert names(within=["nothing.>"])[0] == []
    (row,) = perform(served, "groups", within=["orders"], q="g1")["rows"]
    assert (row["topics"], row["lag"]) == (["orders"], 19)
    assert perform(served, "group", name="g1")["lag"] == 20
    with pytest.raises(NotFound):
        perform(served, "group", name="only-bills", within=["orders"])
    with pytest.raises(NotFound):
        perform(served, "delete_group", name="only-bills", within=["orders"])
    for limit in (0, 1001):
        with pytest.raises(ConfigError, match="limit"):
            perform(served, "groups", limit=limit)


def test_ten_thousand_groups_do_not_flood_a_sample(served: Served) -> None:
    stored = served.endpoint.groups.offsets.groups
    for i in range(10_000):
        offsets = {"orders": {0: Offset(i % 20), 1: Offset(0)}}
        stored[f"g{i:05}"] = Stored(group=f"g{i:05}", at=0.0, offsets=offsets)
    shown = sample(served.link.node, time.time_ns())["kafka"]
    assert (len(shown["groups"]), shown["groups_total"]) == (SAMPLED_MAX, 10_000)
    assert {row["lag"] for row in shown["groups"]} == {40}
    assert shown["groups"][0]["lag_s"] > 0
    again = sample(served.link.node, time.time_ns())["kafka"]
    assert again["groups"] is shown["groups"], "it is made anew only when its share of time is over"
    page = perform(served, "groups", limit=1000, after="g08999")
    assert (len(page["rows"]), page["next"]) == (1000, None)


def test_a_client_is_shown_with_its_key(tmp_path: Path) -> None:
    secret, key = new_key("shop", [Scope(pattern=">", rights=["subscribe"])])
    served = Served(tmp_path, TOPICS, keys=[key])
    bare = served.bare()
    bare.ask(tables.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    (row,) = perform(served, "clients")["rows"]
    assert (row["key"], row["key_name"]) == ("", "")
    assert bare.log_in("shop", secret) == 0
    (row,) = perform(served, "clients")["rows"]
    assert (row["key"], row["key_name"]) == (key.id, "shop")
    assert row["since_ns"] <= time.time_ns()
    assert perform(served, "clients", after=row["number"])["rows"] == []
    bare.close()
    served.close()


def test_an_engine_without_an_endpoint_says_so(tmp_path: Path) -> None:
    link = EmbeddedLink.open(topology_from({"topics": TOPICS}), data_dir=tmp_path)
    with pytest.raises(NotFound, match="--kafka HOST:PORT"):
        link.administer("kafka_groups", {})
    assert "kafka" not in sample(link.node, 1)
    link.close()


@pytest.mark.parametrize("raw", [b"", b"\0", b"\0\0\x7f\xff\xff\xff", b"\0\1\0\0\0\1\0\1a"])
def test_what_members_say_of_their_queues_is_not_trusted(raw: bytes) -> None:
    group = Group("g", kind="consumer")
    member = Member("m", None, "c", "h", 1.0, 1.0, {}, 0.0, assignment=raw)
    assert assignment_of(group, member) == []


def test_a_queue_that_is_none_has_no_lag(served: Served) -> None:
    """A member may say that it has partition -1, or one beyond the topic."""
    rows = struct.pack(">hi", 0, 1) + b"\0\6orders" + struct.pack(">i3i", 3, -1, 0, 99)
    group = served.endpoint.groups.coordinator.groups["odd"] = Group("odd", kind="consumer")
    group.members["m"] = Member(
        "m", None, "c", "h", 9e9, 9e9, {}, time.monotonic() + 1e6, assignment=rows
    )
    found = perform(served, "group", name="odd")["offsets"]
    assert {row["queue"]: row["end"] for row in found} == {-1: None, 0: 20, 99: None}
    del served.endpoint.groups.coordinator.groups["odd"]


def test_the_shell_shows_groups_and_clients(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(served, "billing", orders_0=15, orders_1=20)

    def ask(_data_dir: Any, _token: Any, action: str, **arguments: Any) -> Any:
        return served.link.node.kafka.perform(action, arguments)

    monkeypatch.setattr(commands, "ask", ask)

    def run(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(commands.kafka, list(words))
        assert done.exit_code == code, done.output
        return done.output

    assert "billing" in run("groups", "--topic", "orders")
    assert '"lag":5' in run("groups", "--json").replace(" ", "")
    assert "orders" in run("group", "billing")
    assert "client id" in run("clients") or "no Kafka clients" in run("clients")
    assert "15" in run("reset", "billing", "--to", "earliest", "--dry-run")
    run("reset", "billing", "--to", "0:7", "--topic", "orders")
    assert perform(served, "group", name="billing")["lag"] == 13
    run("reset", "billing", "--to", "3", "--topic", "orders", "--queue", "1")
    run("reset", "billing", "--to", "-1h")
    run("reset", "billing", code=2)
    run("delete", "billing", code=1)
    assert "with 2 offsets" in run("delete", "billing", "--yes")
    assert run("groups") == "no Kafka groups\n"


def test_looking_while_members_join_and_leave(served: Served) -> None:
    """Rows are made in another thread than the coordinator's."""

    async def churn() -> None:
        groups = served.endpoint.groups.coordinator.groups
        for i in range(2000):
            group = groups.setdefault(f"c{i % 7}", Group(f"c{i % 7}", kind="consumer"))
            member = Member(f"m{i}", None, "c", "h", 9e9, 9e9, {}, time.monotonic() + 1e6)
            group.members[member.id] = member
            if i % 5 == 0:
                groups.pop(f"c{i % 7}")
            if i % 10 == 0:
                await asyncio.sleep(0)
        groups.clear()

    loop = served.endpoint._server.loop
    assert loop is not None
    done = asyncio.run_coroutine_threadsafe(churn(), loop)
    while not done.done():
        perform(served, "groups")
        served.link.node.kafka.sample()
    done.result()
