"""Moves of leased topics: noted with the lease, listed by REST and by the command line."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from sqlalchemy import text

from tests.conftest import Eventually
from tests.control.test_link import _engine as made_engine
from tests.control.test_link import control
from tests.support.control import Running, Service
from tidecast.cli.cluster.cluster import cluster as commands
from tidecast.control_link.leases import LinkLeases
from tidecast.engine.process import Engine
from tidecast.queues.leases.store import Acquire, Batch, Release, Request
from tidecast_control.leases import moves
from tidecast_control.leases import service as leases

FIXTURES = (control,)
LONG_NS, OVER_NS = 3_000_000_000_000, 0
HEAD = "0123456789abcdef/"


def ask(service: Service, owner: str, *requests: Any) -> None:
    """Requests of an engine: one alone, several as a batch."""
    request: Request = Batch(1, list(requests)) if len(requests) > 1 else requests[0]
    with service.ctx.db.begin() as session:
        leases.handle(session, owner, msgspec.to_builtins(request))


def listed(service: Service, query: str = "") -> list[Any]:
    found: list[Any] = service.admin.get(f"/api/v1/cluster/moves{query}").json()["items"]
    return found


def ways(service: Service, query: str = "") -> list[tuple[str, str, str]]:
    """From, to and why, oldest first."""
    rows = reversed(listed(service, query))
    return [(each["from_node"], each["to_node"], each["reason"]) for each in rows]


def test_a_move_has_both_nodes_the_reason_and_the_time_without_an_owner(service: Service) -> None:
    queue = HEAD + "orders"
    ask(service, "a", Acquire(1, queue, "a", LONG_NS))
    ask(service, "a", Release(2, queue, "a", 1, "the node is drained"))
    [away, _] = listed(service)
    assert (away["topic"], away["from_node"], away["to_node"]) == ("orders", "a", "")
    assert (away.get("taken_at"), away.get("away_s")) == (None, None)
    ask(service, "b", Acquire(3, queue, "b", LONG_NS))
    [moved, first] = listed(service)
    assert (moved["id"], moved["to_node"], moved["epoch"]) == (away["id"], "b", "2")
    assert 0 <= moved["away_s"] < 60
    assert moved["reason"] == "the node is drained"
    assert (first["from_node"], first["to_node"], first["reason"]) == ("", "a", moves.FIRST)


def test_every_way_to_another_owner_is_a_move(service: Service) -> None:
    ask(service, "a", Acquire(1, "q", "a", OVER_NS))
    ask(service, "b", Acquire(2, "q", "b", LONG_NS))
    ask(service, "b", Acquire(3, "q", "b", LONG_NS))
    ask(service, "c", Acquire(4, "q", "c", LONG_NS))  # refused: no move
    ask(service, "b", Release(5, "q", "b", 1, "of an epoch before"))
    ask(service, "b", Release(6, "q", "b", 3))
    ask(service, "b", Release(7, "q", "b", 3, "once more"))
    ask(service, "a", Acquire(8, "q", "a", LONG_NS))
    with service.ctx.db.begin() as session:
        leases.end(session, "a", "its node is quarantined")
        leases.end(session, "a", "again")
    ask(service, "c", Acquire(9, "q", "c", LONG_NS))
    assert ways(service) == [
        ("", "a", moves.FIRST),
        ("a", "b", moves.ENDED),
        ("b", "b", moves.AGAIN),
        ("b", "a", moves.GIVEN_BACK),
        ("a", "c", "its node is quarantined"),
    ]


def test_a_batch_may_give_a_queue_back_and_take_it_again(service: Service) -> None:
    """Also the other way round; and a node's presence is no topic."""
    here = [Acquire(1, "@a", "a", LONG_NS), Acquire(2, HEAD + "@a", "a", LONG_NS)]
    twice = [Acquire(3, "q", "a", LONG_NS), Release(4, "q", "a", 1, "x")]
    again = [Acquire(5, "q", "a", LONG_NS), Release(6, "q", "a", 2, "y")]
    ask(service, "a", *here, *twice, *again)
    ask(service, "a", Release(7, "@a", "a", 1), Release(8, HEAD + "@a", "a", 1))
    assert ways(service) == [("", "a", moves.FIRST), ("a", "a", "x"), ("a", "", "y")]


def test_moves_come_in_pages_by_topic_and_node(service: Service) -> None:
    for i in range(5):
        ask(service, f"n{i % 2}", Acquire(i, f"{HEAD}t{i}", f"n{i % 2}", LONG_NS))
    got, cursor = [], ""
    while True:
        url = f"/api/v1/cluster/moves?limit=2&count=true{cursor}"
        page = service.admin.get(url).json()
        assert page["total"] == 5
        got += [each["topic"] for each in page["items"]]
        if not page.get("next_cursor"):
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert got == ["t4", "t3", "t2", "t1", "t0"]
    assert [each["topic"] for each in listed(service, "?node=n1")] == ["t3", "t1"]
    assert [each["topic"] for each in listed(service, "?topic=t2")] == ["t2"]
    assert listed(service, "?topic=t2&node=n1") == []
    assert listed(service, "?node=n0&topic=none") == []
    unknown = service.admin.get("/api/v1/cluster/moves?node=n7")
    assert (unknown.status_code, unknown.json()["detail"]) == (404, "no node 'n7'")
    for query in ("?limit=0", "?cursor=abc", "?nodes=n1", "?topic=a%00"):
        assert service.admin.get(f"/api/v1/cluster/moves{query}").status_code == 422, query


def test_old_moves_are_forgotten(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(6):
        ask(service, "a", Acquire(i, f"t{i}", "a", LONG_NS))
    monkeypatch.setattr(moves, "ROWS_MAX", 4)
    with service.ctx.db.begin() as session:
        old = {"old": timedelta(days=moves.DAYS + 1)}
        session.execute(text("UPDATE lease_moves SET at = at - :old WHERE topic = 't5'"), old)
        moves.forget(session)
    assert [each["topic"] for each in listed(service)] == ["t4", "t3", "t2", "t1"]


def test_a_service_of_before_gets_no_reason() -> None:
    sent: list[Any] = []

    def send(message: dict[str, Any]) -> bool:
        sent.append(message)
        return False

    store = LinkLeases(send)
    release = Release(1, "q", "a", 1, "the node is drained")
    for reasons in (False, True):
        store.allow(1000, reasons=reasons)
        for request in (release, Batch(2, [release])):
            with pytest.raises(Exception, match="no connection"):
                store.handle(request)
    said = ["reason" in json.dumps(each) for each in sent]
    assert said == [False, False, True, True]


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ({}, "'moves' is missing"),
        ({"moves": [{}], "stays": []}, "'at_ns' is missing"),
        ({"moves": [], "stays": [{"kind": "topic"}]}, "name: Field required"),
        ({"moves": 7, "stays": []}, "not iterable"),
        ([], "list indices"),
    ],
)
@pytest.mark.parametrize("command", ["cluster/nodes/n1/drain", "nodes/n1/counters"])
def test_an_incomplete_answer_of_an_engine_is_named(
    service: Service, monkeypatch: pytest.MonkeyPatch, answer: Any, what: str, command: str
) -> None:
    """It was a KeyError, and status 500."""

    async def told(*_given: Any) -> Any:
        return answer

    monkeypatch.setattr(service.ctx.hub, "ask", told)
    monkeypatch.setattr("tidecast_control.nodes.service.spec_of", lambda _db, _name: {})
    refused = service.admin.get(f"/api/v1/{command}")
    assert refused.status_code == 502, refused.text
    assert refused.json()["code"] == "node_failed"
    if command.endswith("drain"):
        assert what in refused.json()["detail"]


def test_a_node_is_drained_from_the_shell(
    control: Running, short_dir: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dry run, drain, moves, undrain; and a node without another that takes its topics."""
    made = control.api.post("/keys", json={"name": "ops", "role": "admin"})
    monkeypatch.setenv("TIDECAST_KEY", made.json()["secret"])

    def shell(*line: str, exits: int = 0) -> str:
        done = CliRunner().invoke(commands, [*line, "--control", control.url])
        assert done.exit_code == exits, done.output
        return done.output

    def keeps(name: str) -> int:
        said: dict[str, Any] = json.loads(shell("drain", name, "--dry-run", "--json"))
        return len(said["keeps"])

    shared = {"directory": str(short_dir), "lease_s": 2.0}
    engines: list[Engine] = []
    for name in ("a", "b"):
        (short_dir / name).mkdir()
        engines.append(made_engine(control, short_dir / name, name=name, leases=shared))
    try:
        for i in range(4):
            topic = {"spec": {"mode": "durable", "owner": "*"}}
            assert control.api.put(f"/topics/t{i}", json=topic).status_code == 201
        eventually(lambda: (keeps("a"), keeps("b")) == (2, 2), "an equal share", timeout_s=60)
        assert "a drain hands 2 leased topics over" in shell("drain", "a", "--dry-run")
        assert "node a is empty" in shell("drain", "a", "--timeout", "60")
        assert "  drained" in shell("status")
        eventually(lambda: keeps("b") == 4, "all are there", timeout_s=60)
        said = shell("moves", "--node", "a", "--limit", "2").splitlines()
        assert len(said) == 2
        for line in said:
            assert "  a -> b  the node is drained  " in line
            assert line.endswith("s without an owner")
        topic = json.loads(shell("moves", "--json"))["items"][0]["topic"]
        assert f"  {topic}  a -> b" in shell("moves", "--topic", topic)
        assert "no leased topic has moved" in shell("moves", "--topic", "none")
        said_b = shell("drain", "b", "--timeout", "60", exits=1)
        assert "4 leased topics left" in said_b
        assert "is not drained, is up" in said_b
        for name in ("b", "a"):
            assert f"node {name} takes its share" in shell("undrain", name)
        eventually(lambda: (keeps("a"), keeps("b")) == (2, 2), "shared again", timeout_s=60)
        shell("drain", "nobody", exits=1)
    finally:
        for one in engines:
            one.stop()
    eventually(lambda: "the engine stops" in shell("moves"), "they gave all back", timeout_s=30)
