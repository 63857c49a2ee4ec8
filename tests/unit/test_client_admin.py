"""`client.topics` and `client.subscriptions`: in the process, at an engine, through its gateway."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from tests.support.gateways import make_gateway, remote

import tidecast
import tidecast.sync
from tidecast.access import Scope, new_key
from tidecast.client.admin import aio, blocking
from tidecast.client.admin.types import Size, TopicSettings
from tidecast.config.store import TopologyStore
from tidecast.config.topology import TopicConfig, load_topology, topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.engine.process import Engine
from tidecast.errors import AuthError, Closed, ConfigError, Conflict, NotFound
from tidecast.node.consumers.lists import ROWS_MAX

SETTINGS: dict[str, Any] = {"transports": [{"name": "ipc", "kind": "ipc"}]}
MANAGER, MANAGER_KEY = new_key("manager", [Scope(pattern="orders.>", rights=["manage"])])


@pytest.fixture(params=["embedded", "engine", "gateway"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tidecast.sync.Connection]:
    if request.param == "embedded":
        with tidecast.sync.connect("embedded://", topology=SETTINGS) as made:
            yield made
    elif request.param == "engine":
        engine = Engine(tmp_path, topology_from(SETTINGS))
        engine.start()
        with tidecast.sync.connect(f"tidecast://{tmp_path}") as made:
            yield made
        engine.stop()
    else:
        link = EmbeddedLink.open(topology_from(SETTINGS), data_dir=tmp_path, name="host")
        gateway = make_gateway(link)
        with remote(gateway.url) as made:
            yield made
        gateway.stop()
        link.close()


def test_topics(client: tidecast.sync.Connection) -> None:
    assert client.topics.list() == []
    made = client.topics.create("orders", mode="durable", queues=3, cache_bytes="1MiB")
    assert made == TopicConfig(
        name="orders", transport="ipc", mode="durable", queues=3, cache_bytes=1 << 20
    )
    assert client.topics.get("orders") == made == client.topics.list("orders")[0]
    with pytest.raises(Conflict, match="topic orders exists already"):
        client.topics.create("orders")
    edited = client.topics.edit("orders", retention_s=60.0)
    assert (edited.retention_s, edited.queues) == (60.0, 3)
    client.topics.create("orders.failed", mode="durable")
    assert [each.name for each in client.topics.list("orders.*")] == ["orders.failed"]
    client.topics.delete("orders")
    with pytest.raises(NotFound, match="no topic orders"):
        client.topics.get("orders")
    with pytest.raises(NotFound):
        client.topics.delete("orders")
    with pytest.raises(NotFound):
        client.topics.get("*")
    assert [each.name for each in client.topics.list()] == ["orders.failed"]


def test_a_misspelt_topic_names_the_near_one(client: tidecast.sync.Connection) -> None:
    client.topics.create("orders", mode="durable", queues=2)
    for act in (
        lambda: client.topics.edit("order", retention_s=60.0),
        lambda: client.topics.delete("oders"),
        lambda: client.topics.pause("Orders"),
        lambda: client.topics.pause("ordrs", queue=0),
    ):
        with pytest.raises(NotFound, match="did you mean orders"):
            act()
    with pytest.raises(NotFound, match=r"no queue 7 of topic orders: it has 0\.\.1"):
        client.topics.pause("orders", queue=7)


def test_settings_that_are_wrong_change_nothing(client: tidecast.sync.Connection) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"mode": "Durable"}, "mode: Durable: allowed durable, live"),
        ({"quues": 3}, "quues"),
    ]
    for settings, message in wrong:
        with pytest.raises(ConfigError, match=message):
            client.topics.create("orders", **settings)
    assert client.topics.list() == []
    made = client.topics.create("orders", mode="durable", queues=2)
    with pytest.raises(ConfigError, match="cannot change while it runs"):
        client.topics.edit("orders", history_bytes="1MiB")
    with pytest.raises(ConfigError, match="queues"):
        client.topics.edit("orders", queues=0)
    assert client.topics.get("orders") == made
    assert (
        client.topics.edit("orders", history_bytes="1MiB", recreate=True).history_bytes == 1 << 20
    )


def test_a_topic_is_ensured(client: tidecast.sync.Connection) -> None:
    made = client.topics.ensure("orders", mode="durable", cache_bytes="1MiB")
    assert client.topics.ensure("orders", cache_bytes=1 << 20) == made
    assert client.topics.ensure("orders") == made
    with pytest.raises(Conflict, match=r"queues is 1, not 4, fsync is 'interval', not 'batch'"):
        client.topics.ensure("orders", mode="durable", queues=4, fsync="batch")
    with pytest.raises(ConfigError, match="queues"):
        client.topics.ensure("orders", queues=-1)
    assert client.topics.get("orders") == made


def test_several_programs_ensure_a_topic_at_once(client: tidecast.sync.Connection) -> None:
    found: list[TopicConfig] = []
    at_once = threading.Barrier(8)

    def ensure() -> None:
        at_once.wait()
        found.append(client.topics.ensure("orders", mode="durable", queues=2))

    threads = [threading.Thread(target=ensure) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [client.topics.get("orders")] * 8


def test_deliveries_pause(client: tidecast.sync.Connection) -> None:
    client.topics.create("orders", mode="durable", queues=2)
    info = client.subscriptions.create("orders", "billing")
    assert [each.paused_by for each in info.cursors] == [[], []]
    client.topics.pause("orders", queue=1)
    client.topics.pause("orders")
    info = client.subscriptions.get("orders", "billing")
    assert [sorted(each.paused_by) for each in info.cursors] == [["topic"], ["queue", "topic"]]
    client.topics.resume("orders")
    client.topics.resume("orders", queue=1)
    info = client.subscriptions.get("orders", "billing")
    assert [each.paused_by for each in info.cursors] == [[], []]
    with pytest.raises(NotFound, match="no queue 2"):
        client.topics.pause("orders", queue=2)


def test_subscriptions(client: tidecast.sync.Connection) -> None:
    client.topics.create("orders", mode="durable")
    made = client.subscriptions.create(
        "orders",
        "billing",
        ack_wait=5.0,
        max_deliver=2,
        key="eu.*",
        headers={"kind": "a"},
        where="size > 1",
    )
    assert (made.ack_wait_s, made.max_deliver, made.key_pattern) == (5.0, 2, "eu.*")
    assert (made.headers, made.where, made.paused) == ({"kind": "a"}, "size > 1", False)
    client.subscriptions.create("orders", "audit", start="latest")
    client.subscriptions.pause("orders", "audit")
    audit, billing = client.subscriptions.list("orders")
    assert (audit.name, audit.paused, billing.name) == ("audit", True, "billing")
    assert client.subscriptions.list("other") == []
    client.subscriptions.resume("orders", "audit")
    assert not client.subscriptions.get("orders", "audit").paused
    with pytest.raises(Conflict, match="exists already"):
        client.subscriptions.create("orders", "audit")
    client.subscriptions.delete("orders", "audit")
    assert [each.name for each in client.subscriptions.list()] == ["billing"]
    for call in (client.subscriptions.get, client.subscriptions.delete, client.subscriptions.pause):
        with pytest.raises(NotFound, match="audit"):
            call("orders", "audit")
    with pytest.raises(ConfigError, match="max_deliver: -1: allowed"):
        client.subscriptions.create("orders", "x", max_deliver=-1)


def test_a_subscription_is_ensured(client: tidecast.sync.Connection) -> None:
    client.topics.create("orders", mode="durable")
    made = client.subscriptions.ensure("orders", "billing", ack_wait=5.0)
    again = client.subscriptions.ensure("orders", "billing", ack_wait=5.0, start="latest")
    assert again.created_ns == made.created_ns
    with pytest.raises(Conflict, match=r"ack_wait_s is 5.0, not 6.0, where is '', not 'size > 1'"):
        client.subscriptions.ensure("orders", "billing", ack_wait=6.0, where="size > 1")


def test_records_are_looked_at_and_passed_over(client: tidecast.sync.Connection) -> None:
    client.topics.create("orders", mode="durable")
    client.subscriptions.create("orders", "billing")
    for n in range(5):
        client.publish("orders", b"%d" % n, key="k", headers={"n": n}, ack="durable")
    info = client.subscriptions.get("orders", "billing")
    assert (info.lag, info.cursors[0].end, info.members) == (5, 5, [])
    first, second = client.subscriptions.peek("orders", "billing", 2)
    assert (first.payload, first.key, first.headers, first.size) == (b"0", b"k", {"n": 0}, 1)
    assert (second.topic, second.queue, second.offset) == ("orders", 0, 1)
    assert 0 < first.time_ns <= second.time_ns
    (moved,) = client.subscriptions.seek("orders", "billing", tidecast.Latest(), dry_run=True)
    assert (moved.before, moved.after, moved.records) == (0, 5, 5)
    assert client.subscriptions.get("orders", "billing").lag == 5
    client.subscriptions.seek("orders", "billing", tidecast.Tokens({0: 3}), queue=0)
    assert [each.payload for each in client.subscriptions.peek("orders", "billing")] == [b"3", b"4"]
    with client.consumer("orders", "billing") as consumer:
        assert consumer.next(timeout=10.0).data == b"3"
        (member,) = client.subscriptions.get("orders", "billing").members
        assert member.max_in_flight == 500
        assert member.in_flight >= 1
    with pytest.raises(ConfigError, match="limit: 0: allowed 1 to 1000"):
        client.subscriptions.peek("orders", "billing", 0)


def test_asyncio() -> None:
    async def main() -> None:
        async with tidecast.connect("embedded://", topology=SETTINGS) as client:
            made = await client.topics.ensure("orders", mode="durable", queues=2)
            assert await client.topics.list() == [await client.topics.get("orders")] == [made]
            edited = await client.topics.edit("orders", retention_s=5.0)
            assert edited.retention_s == 5.0
            await client.subscriptions.create("orders", "billing")
            await client.publish("orders", b"x", ack="durable")
            (record,) = await client.subscriptions.peek("orders", "billing")
            assert record.payload == b"x"
            moved = await client.subscriptions.seek("orders", "billing", "latest")
            assert sum(each.records for each in moved) == 1
            await client.topics.pause("orders")
            await client.subscriptions.pause("orders", "billing")
            info = await client.subscriptions.get("orders", "billing")
            assert (info.cursors[0].paused_by, info.paused) == (["subscription", "topic"], True)
            await client.topics.resume("orders")
            await client.subscriptions.resume("orders", "billing")
            ensured = await client.subscriptions.ensure("orders", "billing")
            assert not ensured.paused
            await client.subscriptions.delete("orders", "billing")
            await client.topics.delete("orders")
            assert await client.subscriptions.list() == []
            assert await client.topics.list() == []
            await client.topics.create("orders")
            with pytest.raises(Conflict):
                await client.topics.create("orders")

    asyncio.run(main())


def test_both_clients_have_the_same_calls() -> None:
    for one, other in (
        (blocking.Topics, aio.Topics),
        (blocking.Subscriptions, aio.Subscriptions),
    ):
        calls = {name for name in vars(one) if not name.startswith("_") and name != "PUBLIC"}
        assert calls == set(one.PUBLIC.split()) == set(other.PUBLIC.split())
        for name in calls:
            here, there = getattr(one, name), getattr(other, name)
            assert inspect.signature(here) == inspect.signature(there), name
            assert here.__doc__ == there.__doc__, name


def test_settings_are_those_of_a_topic() -> None:
    given, config = get_type_hints(TopicSettings), get_type_hints(TopicConfig)
    assert list(given) == [name for name in config if name != "name"]
    sizes = {name for name, kind in given.items() if kind == Size}
    assert sizes == {name for name in given if name.endswith(("_bytes", "bytes_per_s"))}
    for name in set(given) - sizes:
        assert get_args(given[name]) == get_args(config[name]), name


def test_many_topics_come_in_pages(tmp_path: Path) -> None:
    names = [f"t{n:04}" for n in range(ROWS_MAX + 3)]
    settings = SETTINGS | {"topics": [{"name": name} for name in names]}
    with tidecast.sync.connect("embedded://", topology=settings) as client:
        assert [each.name for each in client.topics.list()] == names


def test_changes_are_saved(tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    engine = Engine(tmp_path, topology_from(SETTINGS), topology_file=path)
    engine.start()
    with tidecast.sync.connect(f"tidecast://{tmp_path}") as client:
        client.topics.create("orders", mode="durable", queues=2)
        client.topics.create("gone")
        client.topics.delete("gone")
        client.topics.edit("orders", description="all of them")
    engine.stop()
    (saved,) = load_topology(path).topics
    assert (saved.name, saved.queues, saved.description) == ("orders", 2, "all of them")


def test_a_key_changes_topics_that_its_scopes_cover(tmp_path: Path) -> None:
    settings = SETTINGS | {
        "keys": [msgspec.to_builtins(MANAGER_KEY)],
        "topics": [{"name": "other"}],
    }
    topology = topology_from(settings)
    link = EmbeddedLink.open(topology, data_dir=tmp_path, name="host")
    store = TopologyStore(topology, tmp_path / "topology.yaml")
    gateway = make_gateway(link, find_key=link.node.keys.find, store=store)
    try:
        with remote(gateway.url, token=MANAGER) as client:
            client.topics.create("orders.eu", mode="durable")
            assert [each.name for each in client.topics.list()] == ["orders.eu"]
            changes: list[Callable[[], Any]] = [
                lambda: client.topics.create("invoices"),
                lambda: client.topics.edit("other", linger_us=1),
                lambda: client.topics.delete("other"),
                lambda: client.topics.pause("other"),
            ]
            for change in changes:
                with pytest.raises(AuthError, match="lacks the right manage on"):
                    change()
        assert [t.name for t in load_topology(tmp_path / "topology.yaml").topics] == [
            "other",
            "orders.eu",
        ]
    finally:
        gateway.stop()
        link.close()


def test_a_closed_connection_changes_nothing() -> None:
    client = tidecast.sync.connect("embedded://", topology=SETTINGS)
    client.close()
    with pytest.raises(Closed):
        client.topics.create("orders")
    with pytest.raises(Closed):
        client.subscriptions.list()
