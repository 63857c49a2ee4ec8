"""Kafka groups and clients by way of the service: listed, live, alerted, reset, deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest

from tests.conftest import Eventually
from tests.control.test_link import control, engine
from tests.support.control import Running, Service
from tests.support.kafka import TIMEOUT_S, administration_of
from tidecast.config.kafka import KafkaConfig
from tidecast.engine.process import Engine
from tidecast.kafka.server import KafkaEndpoint
from tidecast_control.alerts.evaluate import measured
from tidecast_control.kafka import live
from tidecast_control.kafka.service import Wanted, cli_of
from tidecast_control.live.world import Source, World, build

FIXTURES = (control, engine)
N = 10


@pytest.fixture
def endpoint(control: Running, engine: Engine, eventually: Eventually) -> Iterator[KafkaEndpoint]:
    """An endpoint of the engine, and a topic."""
    node: Any = engine.node
    topic = {"spec": {"mode": "durable", "queues": 2, "fsync_interval_ms": 2}}
    assert control.api.put("/topics/orders", json=topic).status_code == 201
    eventually(lambda: "orders" in node.durable.topics, "the topic", timeout_s=30)
    made = KafkaEndpoint(node, administration_of(node), KafkaConfig(listen=":0"))
    made.start()
    yield made
    made.stop()


def consumer_of(endpoint: KafkaEndpoint, group: str) -> confluent_kafka.Consumer:
    made = confluent_kafka.Consumer(
        {
            "bootstrap.servers": endpoint.address,
            "group.id": group,
            "client.id": "till",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    made.subscribe(["orders"])
    return made


def test_a_group_is_listed_live_reset_and_deleted(
    control: Running, endpoint: KafkaEndpoint, eventually: Eventually
) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": endpoint.address})
    for i in range(N):
        producer.produce("orders", b"%d" % i, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    name = "billing/eu"
    consumer = consumer_of(endpoint, name)
    got: list[Any] = []
    while len(got) < N:
        got += consumer.consume(N, TIMEOUT_S)
    consumer.commit(offsets=[confluent_kafka.TopicPartition("orders", 0, 4)], asynchronous=False)
    api = control.api
    (row,) = api.get("/kafka/groups").json()["items"]
    assert (row["name"], row["state"], row["members"], row["lag"]) == (name, "Stable", 1, "6")
    with control.live("kafka") as feed:
        shown = feed.until("kafka", lambda data: bool(data.get("groups")) and data["clients"])
    assert shown["groups"][f"{row['node']}/{name}"]["lag"] == "6"
    assert shown["groups_total"] == 1
    assert "till" in {each["client_id"] for each in shown["clients"].values()}

    path = "/kafka/groups/billing%2Feu"
    found = api.get(path).json()
    offsets = {each["queue"]: (each["committed"], each["end"]) for each in found["offsets"]}
    assert offsets == {0: ("4", "10"), 1: (None, "0")}
    assert found["consumers"][0]["assigned"] == ["orders:0", "orders:1"]
    clients = api.get("/kafka/clients").json()
    mine = [each for each in clients["items"] if each["client_id"] == "till"]
    assert mine
    assert all(int(each["bytes_in"]) > 0 and each["software"] for each in mine)
    first = api.get("/kafka/clients", params={"limit": 1}).json()
    rest = api.get("/kafka/clients", params={"cursor": first["next_cursor"]}).json()
    numbers = [each["number"] for each in [*first["items"], *rest["items"]]]
    assert numbers == [each["number"] for each in clients["items"]]

    refused = api.delete(path)
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert "has 1 member" in refused.json()["detail"]
    consumer.close()
    eventually(lambda: api.get(path).json()["state"] == "Empty", "the members' end", timeout_s=30)
    planned = api.post(f"{path}/reset?dry_run=true", json={"to": "earliest"}).json()
    moved = [(r["queue"], r["before"], r["after"]) for r in planned["results"][0]["value"]["rows"]]
    assert moved == [("0", "4", "0"), ("1", None, "0")]
    assert api.get(path).json()["lag"] == "6"
    done = api.post(
        f"{path}/reset", json={"to": "offset", "topic": "orders", "queue": 0, "offset": "9"}
    )
    assert done.status_code == 200, done.text
    assert done.json()["cli"] == "tidecast kafka reset billing/eu --to 9 --topic orders --queue 0"
    assert api.get(path).json()["lag"] == "1"
    beyond = api.post(
        f"{path}/reset", json={"to": "offset", "topic": "orders", "queue": 0, "offset": "99"}
    )
    assert (beyond.status_code, beyond.json()["code"]) == (422, "invalid_request")
    assert "allowed are 0 to 10 of orders:0" in beyond.json()["detail"]
    assert api.delete(f"{path}?dry_run=true").json()["results"][0]["value"]["offsets"] == "1"
    deleted = api.delete(path)
    assert deleted.status_code == 200, deleted.text
    assert deleted.json()["cli"] == "tidecast kafka delete billing/eu --yes"
    assert api.get(path).status_code == 404
    assert api.get("/kafka/groups").json()["items"] == []
    actions = [each["action"] for each in api.get("/operations").json()["items"]]
    assert {"delete", "reset_offsets"} <= set(actions)
    audited = api.get("/audit", params={"kind": "kafka_group"}).json()["items"]
    assert [each["action"] for each in audited] == ["delete", "reset_offsets"]


def test_an_engine_without_an_endpoint_has_no_groups(control: Running, engine: Engine) -> None:
    assert engine.node is not None
    assert control.api.get("/kafka/groups").json() == {
        "items": [],
        "next_cursor": None,
        "total": None,
        "missing": [],
    }
    assert control.api.get("/kafka/clients").json()["items"] == []
    assert control.api.get("/kafka/groups/none").status_code == 404


def row(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "state": "Stable",
        "kind": "consumer",
        "protocol": "range",
        "generation": 2,
        "members": 1,
        "topics": ["orders"],
        "topics_total": 1,
        "queues": 1,
        "lag": 1,
        "lag_s": None,
        "committed_at": 1.0,
    } | more


def test_groups_of_several_engines_are_merged_in_pages(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two engines have a group of one name: both are shown, a change has to say which."""
    kept = {"n1": ["a", "b", "d"], "n2": ["b", "c", "d"]}
    asked: list[dict[str, Any]] = []

    async def ask(node: str, command: str, args: Any, *_more: Any) -> Any:
        asked.append(args)
        if command == "kafka_group":
            return row(args["name"]) if args["name"] in kept[node] else {}
        names = [
            each
            for each in kept[node]
            if each > args["after"] or (each == args["after"] and args["inclusive"])
        ]
        rest = names[args["limit"] :]
        return {"rows": [row(n) for n in names[: args["limit"]]], "next": "x" if rest else None}

    monkeypatch.setattr(service.ctx.hub, "ask", ask)
    monkeypatch.setattr(service.ctx.hub, "connected", lambda: ["n1", "n2"])
    for limit in range(1, 7):
        found: list[tuple[str, str]] = []
        cursor: str | None = ""
        while cursor is not None:
            params = {"limit": limit} | ({"cursor": cursor} if cursor else {})
            page = service.admin.get("/api/v1/kafka/groups", params=params).json()
            found += [(each["name"], each["node"]) for each in page["items"]]
            cursor = page["next_cursor"]
        assert found == [
            ("a", "n1"),
            ("b", "n1"),
            ("b", "n2"),
            ("c", "n2"),
            ("d", "n1"),
            ("d", "n2"),
        ]
    both = service.admin.get("/api/v1/kafka/groups/b")
    assert (both.status_code, both.json()["code"]) == (409, "conflict")
    assert "n1 and n2" in both.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"to": "latest", "shift": 1},
        {"to": "offset", "offset": "1"},
        {"to": "time"},
        {"to": "latest", "queue": 0},
        {"to": "middle"},
        {"shift": "1"},
        {"to": "latest", "x": 1},
        {"to": "offset", "topic": "t", "queue": 0, "offset": "-1"},
    ],
)
def test_a_wrong_reset_is_refused(service: Service, body: dict[str, Any]) -> None:
    answer = service.admin.post("/api/v1/kafka/groups/g/reset", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


def sample(mono_ns: int, **kafka: Any) -> dict[str, Any]:
    return {
        "mono_ns": mono_ns,
        "counters": {},
        "publications": [],
        "images": [],
        "receivers": [],
        "subscriptions": {},
        "clients": 0,
        "kafka": kafka,
    }


def world_of(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> World:
    first = sample(0, groups=before, groups_total=2, clients=[], clients_total=0)
    second = sample(2_000_000_000, groups=now, groups_total=2, clients=[], clients_total=0)
    return build([Source("n1", first, second)])


def test_a_lag_has_a_trend_and_rules_cover_it() -> None:
    world = world_of([row("g", lag=100)], [row("g", lag=60, lag_s=7.25), row("new", lag=None)])
    shown = world.kafka_groups["n1/g"]
    assert (shown["lag"], shown["lag_trend_per_s"], shown["drain_s"]) == ("60", -20.0, 3.0)
    assert "lag" not in world.kafka_groups["n1/new"]
    assert measured("lag_messages", world).values == {"kafka:g": 60.0}
    assert measured("lag_s", world).values == {"kafka:g": 7.25}
    assert measured("lag_s", world).sources == {"kafka:g": {"n1"}}


def test_clients_have_rates() -> None:
    client = {
        "number": 7,
        "client_id": "c",
        "software": "s",
        "address": "127.0.0.1:1",
        "key": "",
        "key_name": "",
        "since_ns": 10**18,
        "bytes_in": 100,
        "bytes_out": 50,
        "requests": 3,
    }
    now = sample(2, clients=[client | {"bytes_in": 300}], clients_total=1)
    found = live.live_clients("n", now, sample(1, clients=[client]), 2.0)["n/7"]
    assert (found["in_per_s"], found["out_per_s"], found["bytes_in"]) == (100.0, 0.0, "300")
    assert live.live_clients("n", sample(1), None, 0.0) == {}
    assert live.total(now, "clients_total") == 1


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"shift": -5}, "--shift -5"),
        ({"to": "latest", "topic": "orders"}, "--to latest --topic orders"),
        ({"to": "time", "time_ns": 1_500_000_000}, "--to 1970-01-01T00:00:01.500000+00:00"),
    ],
)
def test_the_command_of_a_reset(request_: dict[str, Any], words: str) -> None:
    wanted = Wanted("reset_offsets", "my group", "", request_, True)
    assert cli_of(wanted) == f"tidecast kafka reset 'my group' {words} --dry-run"
