"""Leases in Postgres: the same answers as the table in memory; over the link; two at once."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import msgspec
import pytest
from sqlalchemy import text

from tests.conftest import Eventually
from tests.control.test_link import _engine as made_engine
from tests.control.test_link import control, engine
from tests.support.control import Running, Service
from tests.support.races import two_at_once
from tidecast.config.topology import NodeConfig, load_topology
from tidecast.control_link.leases import LinkLeases
from tidecast.engine.process import Engine
from tidecast.errors import AuthError, NoResponders, Timeout
from tidecast.node.durable.leases import Leases
from tidecast.queues.leases.keeper import LeaseKeeper
from tidecast.queues.leases.scope import directory_id
from tidecast.queues.leases.store import (
    BATCH_MAX,
    Acquire,
    Answers,
    Batch,
    Granted,
    LeaseTable,
    Listing,
    ListLeases,
    Refused,
    Release,
    Released,
    Renew,
    Reply,
    Request,
)
from tidecast.telemetry.views import connect_inside
from tidecast_control.db import Database
from tidecast_control.kit.problems import ProblemError
from tidecast_control.leases import service as leases

FIXTURES = (control, engine)
LONG_NS, OVER_NS = 3_000_000_000_000, 0
S = 1_000_000_000


def _ask(db: Database, request: Request) -> Reply:
    node = getattr(request, "owner", "n0")
    with db.begin() as session:
        found = leases.handle(session, node, msgspec.to_builtins(request))
    return msgspec.convert(found, Reply)


def test_the_same_answers_as_the_table_in_memory(service: Service) -> None:
    """Leases that last, and such as are over at once, in any order."""
    chance, table = random.Random(5), LeaseTable()
    kinds = set()
    for serial in range(150):
        head = (serial, f"q{chance.randrange(2)}", f"n{chance.randrange(3)}")
        lease_ns = chance.choice((LONG_NS, LONG_NS, OVER_NS))
        request: Request = chance.choice(
            (
                Acquire(*head, lease_ns, above=chance.choice((0, 0, 9))),
                Renew(*head, lease_ns, epoch=chance.randrange(40)),
                Renew(*head, lease_ns, epoch=_epoch(table, head[1])),
                Release(*head, epoch=_epoch(table, head[1])),
                ListLeases(serial),
            )
        )
        expected = table.handle(request, serial)
        assert _ask(service.ctx.db, request) == expected, (serial, request)
        kinds.add(type(expected))
    assert kinds == {Granted, Refused, Released, Listing}


def _epoch(table: LeaseTable, queue: str) -> int:
    lease = table.leases.get(queue)
    return lease.epoch if lease is not None else 0


def test_a_batch_answers_each_request_as_if_it_came_alone(service: Service) -> None:
    """One lease of it is lost, one was never made, one is given back and taken again."""
    db, table = service.ctx.db, LeaseTable()
    before: list[Request] = [Acquire(i, f"q{i}", "n0", LONG_NS) for i in range(3)]
    before += [Release(3, "q1", "n0", 1), Acquire(4, "q1", "n1", LONG_NS)]
    batch = Batch(
        5,
        [
            Renew(6, "q2", "n0", LONG_NS, 1),
            Renew(7, "q1", "n0", LONG_NS, 1),
            Renew(8, "q9", "n0", LONG_NS, 1),
            Release(9, "q0", "n0", 1),
            Acquire(10, "q0", "n0", LONG_NS, above=7),
        ],
    )
    for request in before:
        assert _ask(db, request) == table.handle(request, 1)
    with db.begin() as session:
        raw = leases.handle(session, "n0", msgspec.to_builtins(batch))
    found = msgspec.convert(raw, Reply)
    assert found == table.handle(batch, 2)
    assert found == Answers([Granted(1), Refused("n1", 2), Refused("", 0), Released(), Granted(8)])
    stranger = Batch(1, [Renew(2, "q2", "n0", LONG_NS, 1), Release(3, "q1", "n1", 2)])
    with pytest.raises(ProblemError, match="in the name of n1"), db.begin() as session:
        leases.handle(session, "n0", msgspec.to_builtins(stranger))
    many = Batch(1, [Release(i, "q", "n0", 1) for i in range(BATCH_MAX + 1)])
    with pytest.raises(ProblemError, match="at most 1000"), db.begin() as session:
        leases.handle(session, "n0", msgspec.to_builtins(many))


def test_batches_of_many_engines_do_not_wait_for_each_other_for_ever(service: Service) -> None:
    gate = threading.Barrier(6)

    def ask(n: int) -> Reply:
        names = [f"q{i}" for i in range(60)]
        random.Random(n).shuffle(names)
        gate.wait(10)
        batch = Batch(1, [Acquire(i, name, f"n{n}", LONG_NS) for i, name in enumerate(names)])
        with service.ctx.db.begin() as session:
            raw = leases.handle(session, f"n{n}", msgspec.to_builtins(batch))
        return msgspec.convert(raw, Reply)

    with ThreadPoolExecutor(6) as pool:
        answers = [a for a in pool.map(ask, range(6)) if isinstance(a, Answers)]
    assert len(answers) == 6
    assert sum(isinstance(each, Granted) for a in answers for each in a.replies) == 60


def _commits(service: Service) -> int:
    """Transactions of the database so far; each backend has reported its own."""
    with service.ctx.db.begin() as session:
        session.execute(text("SELECT pg_stat_force_next_flush()"))
        query = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        return int(session.execute(text(query)).scalar_one())


@pytest.mark.long
@pytest.mark.parametrize("batch_max", [BATCH_MAX, 1])
def test_postgres_sees_few_transactions_of_a_thousand_leases(
    service: Service, batch_max: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """8 nodes with 1,000 leased topics, leases of 15 s: one minute of renewals, in virtual time."""
    store, now = ServiceStore(service.ctx.db, batch_max), [0]
    nodes = [FleetNode(f"n{i}", store, now) for i in range(8)]
    for _ in range(60):  # until each has its share
        now[0] += S // 2
        for node in nodes:
            node.step()
    assert [len(node.keeper.held) for node in nodes] == [125] * 8
    before, asked = _commits(service), store.asked
    for _ in range(120):
        now[0] += S // 2
        for node in nodes:
            node.step()
    rate, requests = (_commits(service) - before) / 60, (store.asked - asked) / 60
    assert [len(node.keeper.held) for node in nodes] == [125] * 8
    with capsys.disabled():
        click.echo(f"\nbatches of {batch_max}: {rate:.1f} transactions/s")
    assert requests <= rate * 1.05 + 1, "each request is a transaction"
    assert rate < 20 if batch_max > 1 else rate > 150


class ServiceStore:
    """The service's leases without a link; counts the requests."""

    def __init__(self, db: Database, batch_max: int) -> None:
        self.db, self.batch_max, self.asked = db, batch_max, 0

    def handle(self, request: Request, now_ns: int) -> Reply:
        del now_ns
        self.asked += 1
        owner = getattr(request, "owner", "")
        if isinstance(request, Batch):
            owner = request.requests[0].owner
        with self.db.begin() as session:
            raw = leases.handle(session, owner, _longer(msgspec.to_builtins(request)))
        return msgspec.convert(raw, Reply)


def _longer(raw: dict[str, Any]) -> dict[str, Any]:
    """The clock of Postgres is real: on a slow machine no lease ends before its renewal."""
    if "lease_ns" in raw:
        raw["lease_ns"] *= 40
    for each in raw.get("requests", []):
        _longer(each)
    return raw


class FleetNode:
    """A node's leases, with topics that need no disk."""

    def __init__(self, name: str, store: ServiceStore, now: list[int]) -> None:
        context: Any = SimpleNamespace(
            name=name,
            clock_ns=lambda: now[0],
            wall_ns=lambda: now[0],
            topic_by_name={},
            data_dir=Path("/nowhere"),
            random_id=lambda _: int(name[1:]) + 1,
            topology=SimpleNamespace(node=NodeConfig(name=name)),
            conductor=SimpleNamespace(post=lambda job: job()),
        )
        registry: Any = SimpleNamespace(ctx=context, topics={}, set_owners=lambda _owners: None)
        served: Any = SimpleNamespace(cancel_takeover=lambda _name: None)
        self.leases = Leases(registry, served, None)
        self.leases._store = store
        topics = [f"t{i}" for i in range(1000)]
        self.keeper = LeaseKeeper(name, topics, self.leases.terms, random.Random(name), now[0])
        self.leases._keeper = self.keeper

    def step(self) -> None:
        self.leases.step()


def test_a_node_is_drained_by_rest_and_stays_so(
    control: Running, short_dir: Path, eventually: Eventually
) -> None:
    """Two engines; one is drained under load, restarts, and gets its share back in the end."""
    shared = {"directory": str(short_dir), "lease_s": 2.0}
    engines = {}
    for name in ("a", "b"):
        (short_dir / name).mkdir()
        engines[name] = made_engine(control, short_dir / name, name=name, leases=shared)
    try:
        for i in range(4):
            topic = {"spec": {"mode": "durable", "owner": "*"}}
            assert control.api.put(f"/topics/t{i}", json=topic).status_code == 201
        topic = {"spec": {"mode": "durable"}}
        assert control.api.put("/topics/alone", json=topic).status_code == 201

        def drain(name: str) -> dict[str, Any]:
            found: dict[str, Any] = control.api.get(f"/cluster/nodes/{name}/drain").json()
            return found

        def counts() -> list[int]:
            return [len(drain(name)["keeps"]) for name in ("a", "b")]

        eventually(lambda: counts() == [2, 2], "an equal share", timeout_s=60)
        _publish_each(engines, drain, b"1")
        wanted = {"spec": {"drained": True}}
        plan = control.api.patch("/nodes/a?dry_run=true", json=wanted).json()
        assert plan["changes"][0]["new"] is True
        assert counts() == [2, 2], "a dry run moves nothing"
        assert control.api.patch("/nodes/a", json=wanted).status_code == 200
        eventually(lambda: drain("a")["empty"] and counts() == [0, 4], "empty", timeout_s=60)
        _publish_each(engines, drain, b"2")
        shown_queues = [control.api.get(f"/queues/t{i}:0").json()["latest"] for i in range(4)]
        assert shown_queues == ["2"] * 4, "what was acked by the node before is there"
        found = drain("a")
        assert ("topic", "alone") in [(s["kind"], s["name"]) for s in found["stays"]]
        last = [m for m in found["moves"] if m["kind"] == "released"]
        assert {m["reason"] for m in last} == {"the node is drained"}
        [shown] = [e for e in control.api.get("/cluster").json()["engines"] if e["node"] == "a"]
        assert shown["drained"]
        engines.pop("a").stop()
        kept = load_topology(short_dir / "a" / "topology.yaml").node
        assert kept.drained, "also without the service"
        engines["a"] = made_engine(control, short_dir / "a", name="a", leases=shared)
        assert engines["a"].links[0].connected.wait(20)  # type: ignore[attr-defined]
        eventually(lambda: drain("a")["empty"] and counts() == [0, 4], "still", timeout_s=60)
        control.api.patch("/nodes/b", json=wanted)
        eventually(
            lambda: len([s for s in drain("b")["stays"] if "not drained" in s["reason"]]) == 4,
            "no other engine takes them",
            timeout_s=60,
        )
        assert counts() == [0, 4], "nothing is left without an owner"
        for name in ("a", "b"):
            control.api.patch(f"/nodes/{name}", json={"spec": {"drained": False}})
        eventually(lambda: counts() == [2, 2], "shared again", timeout_s=60)
    finally:
        for one in engines.values():
            one.stop()


def _publish_each(engines: dict[str, Engine], drain: Any, payload: bytes) -> None:
    """One message to each leased topic, at the engine that has it: these hear no other host."""
    for name, each in engines.items():
        client = connect_inside(each.node, "shop")  # type: ignore[arg-type]
        for topic in drain(name)["keeps"]:
            publisher = client.publisher(topic)
            publisher.publish(payload, ack="durable", timeout=60.0)
        client.close()


def test_one_of_many_gets_it(service: Service) -> None:
    gate = threading.Barrier(8)

    def ask(n: int) -> Reply:
        gate.wait(10)
        return _ask(service.ctx.db, Acquire(1, "q", f"n{n}", LONG_NS))

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert sum(isinstance(a, Granted) for a in answers) == 1
    assert {a.epoch for a in answers if isinstance(a, Refused)} == {1}


def test_a_free_lease_goes_to_one_of_two(
    service: Service, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """It was there before: rows that are made at the same time wait for each other anyway."""
    db = service.ctx.db
    granted = _ask(db, Acquire(1, "q", "n0", LONG_NS))
    assert isinstance(granted, Granted)
    assert _ask(db, Release(2, "q", "n0", granted.epoch)) == Released()
    answers = two_at_once(
        (leases, "_answer"),
        (
            lambda: _ask(db, Acquire(3, "q", "n1", LONG_NS)),
            lambda: _ask(db, Acquire(4, "q", "n2", LONG_NS)),
        ),
        db,
        monkeypatch,
        eventually,
    )
    assert answers == (Granted(2), Refused("n1", 2))


def test_over_the_link(control: Running, engine: Engine, tmp_path: Path) -> None:
    del tmp_path
    store = engine.links[0].leases  # type: ignore[attr-defined]
    assert engine.node is not None
    name = engine.node.name
    assert store.handle(Acquire(1, "orders:0", name, LONG_NS, above=41), 0) == Granted(42)
    assert store.handle(ListLeases(2), 0) == Listing({"orders:0": name})
    with pytest.raises(AuthError, match="in the name of other"):
        store.handle(Acquire(3, "orders:0", "other", LONG_NS), 0)
    assert store.handle(Release(4, "orders:0", name, 42), 0) == Released()


def test_queues_and_their_subscriptions_move_between_linked_engines(
    control: Running, short_dir: Path, eventually: Eventually
) -> None:
    """Two engines that share a directory, their leases in Postgres; the one that has them stops.

    It gives its leases back, so none has to expire; beside other load ten seconds did.
    """
    shared = {"directory": str(short_dir), "lease_s": 60.0}
    homes = [short_dir / name for name in ("a", "b")]
    for home in homes:
        home.mkdir()
    engines = {
        home.name: made_engine(control, home, name=home.name, leases=shared) for home in homes
    }
    try:
        topic = {"spec": {"mode": "durable", "owner": "*"}}
        assert control.api.put("/topics/orders", json=topic).status_code == 201
        wanted = {"spec": {"topic": "orders", "start": {"at": "earliest"}}}
        assert control.api.put("/subscriptions/billing", json=wanted).status_code == 201

        def there(name: str) -> bool:
            node: Any = engines[name].node
            return [s["name"] for s in node.consumers.perform("list", {})] == ["billing"]

        eventually(lambda: any(map(there, engines)), "taken, with its subscription", timeout_s=20)
        first = next(filter(there, engines))
        [after] = engines.keys() - {first}

        def queue() -> dict[str, Any]:
            found: dict[str, Any] = control.api.get("/queues/orders:0").json()
            return found

        eventually(lambda: queue()["node"] == first, "seen by the service", timeout_s=20)
        assert queue()["owner_epoch"] == "1"
        assert queue()["owner_since"] > "2026"
        keeps = {n: control.api.get(f"/nodes/{n}").json()["status"]["keeps"] for n in engines}
        assert keeps == {first: ["orders"], after: []}
        assert not [
            c
            for c in control.api.get("/subscriptions/billing").json()["status"]["conditions"]
            if c["type"] == "Error"
        ]
        store = engines[after].links[0].leases  # type: ignore[attr-defined]
        [place] = [q for q in store.handle(ListLeases(1)).owners if q.endswith("/orders")]
        assert place == f"{directory_id(short_dir / 'queues')}/orders"
        assert not (short_dir / "queues" / "leases.json").exists()
        client = connect_inside(engines[first].node, "shop")  # type: ignore[arg-type]
        batch = [b"1", b"2", b"3"]
        client.publisher("orders").publish_batch(batch, ack="durable", timeout=60.0).check()
        control.api.post("/subscriptions/billing/seek", json={"at": "latest"})
        client.close()
        engines.pop(first).stop()
        eventually(lambda: there(after), "moved", timeout_s=20)
        eventually(lambda: queue()["node"] == after, "seen by the service", timeout_s=20)
        assert (queue()["owner_epoch"], queue()["latest"], queue()["cursor"]) == ("2", "3", "3")
    finally:
        for each in engines.values():
            each.stop()


def test_without_a_connection_nothing_is_answered() -> None:
    with pytest.raises(NoResponders, match="no connection"):
        LinkLeases().handle(ListLeases(1))


def test_no_answer_is_a_time_out() -> None:
    sent: list[Any] = []
    store = LinkLeases(sent.append, answer_s=0.01)
    with pytest.raises(Timeout):
        store.handle(ListLeases(1), 0)
    store.take({"type": "leased", "id": 1, "reply": {"type": "Listing", "owners": {}}})
    assert sent[0]["request"]["type"] == "ListLeases"
