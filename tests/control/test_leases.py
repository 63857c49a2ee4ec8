"""Leases in Postgres: the same answers as the table in memory; over the link; two at once."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.conftest import Eventually
from tests.control.test_link import _engine as made_engine
from tests.control.test_link import control, engine
from tests.support.control import Running, Service
from tests.support.races import two_at_once
from tidecast.control_link.leases import LinkLeases
from tidecast.engine.process import Engine
from tidecast.errors import AuthError, NoResponders, Timeout
from tidecast.queues.leases.scope import directory_id
from tidecast.queues.leases.store import (
    Acquire,
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
from tidecast_control.leases import service as leases

FIXTURES = (control, engine)
LONG_NS, OVER_NS = 3_000_000_000_000, 0


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
    """Two engines that share a directory, their leases in Postgres; the one that has them stops."""
    shared = {"directory": str(short_dir), "lease_s": 10.0}
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
