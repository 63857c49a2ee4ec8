"""Engines find their unicast peers by the service: no list, three processes, one of them moves."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from websockets.sync.client import connect

import tidecast.sync
from tests.conftest import Eventually
from tests.control.test_link import control
from tests.support.control import Running
from tests.support.fake_link import FakeLink
from tests.support.lab import Lab, Platform, open_lab
from tests.support.patience import wait_until
from tests.support.ports import free_port
from tidecast.cli.cluster.cluster import _path_words
from tidecast.client.links.socket_session import EngineControl
from tidecast.control_link.peers import load_peers

FIXTURES = (control,)
LAN: dict[str, Any] = {"kind": "udp-unicast", "interface": "lo"}
TOPIC = {"transport": "lan", "flow": "min", "receiver_timeout_s": 300, "history_bytes": 65_536}
AT = {"lan": {"host": "10.0.0.5", "port": 7400}}


def put(control: Running, path: str, spec: dict[str, Any]) -> None:
    answer = control.api.put(f"/{path}", json={"spec": spec})
    assert answer.status_code in (200, 201), answer.text


class Host:
    """An engine process whose address is its own."""

    def __init__(self, lab: Lab, control: Running, name: str) -> None:
        self.lab, self.control, self.name = lab, control, name
        self.platform: Platform = lab.platform(None, start=False)
        self.token = control.enrol()
        self.port = 0

    def start(self, **where: Any) -> None:
        """Bind to a port of its own, and wait until it serves."""
        self.port = free_port()
        address = {"transport": "lan", "port": self.port} | where
        file = self.platform.directory / "topology.yaml"
        told = yaml.safe_load(file.read_text()) if file.exists() else {}
        told["node"] = {"name": self.name, "addresses": [address]}
        file.write_text(yaml.safe_dump(told))
        self.again()

    def again(self) -> None:
        """Start it as it is."""
        token = {**os.environ, "TIDECAST_ENROL_TOKEN": self.token}
        self.platform.engine = self.lab.spawn(
            "engine", "--control", self.control.url, platform=self.platform, env=token
        )
        assert "ready" in self.platform.engine.line()

    def stop(self) -> None:
        assert self.platform.engine is not None
        self.platform.engine.end()

    def peers(self) -> dict[str, str]:
        """The addresses that it sends to, by node."""
        with EngineControl(self.platform.directory) as engine:
            return {row["node"]: row["address"] for row in engine.overview().peers}

    def hears(self) -> set[str]:
        """The peers that it heard a moment ago."""
        with EngineControl(self.platform.directory) as engine:
            rows = engine.overview().peers
        return {r["node"] for r in rows if r["heard_age_s"] is not None and r["heard_age_s"] < 3}

    def receivers(self) -> set[str]:
        """The nodes that receive what is published here."""
        return {row["node"] for row in self.platform.overview().receivers}

    def client(self) -> tidecast.sync.Connection:
        return self.platform.connect()


@pytest.fixture
def lab() -> Iterator[Lab]:
    with open_lab() as made:
        yield made


def heard(control: Running) -> int:
    """The ways on which a packet came, by the reports of all engines."""
    found = control.api.get("/cluster/peers").json()
    assert found["unanswered"] == []
    return len([path for path in found["paths"] if path["heard_age_s"] is not None])


def received(reader: Any, count: int) -> list[bytes]:
    return [bytes(reader.next(timeout=30.0).data) for _ in range(count)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("secure", ["off", pytest.param("required", marks=pytest.mark.long)])
def test_three_engines_without_a_list_find_each_other_and_follow_changes(
    control: Running, lab: Lab, eventually: Eventually, secure: str
) -> None:
    put(control, "transports/lan", {**LAN, "port": free_port(), "secure": secure})
    if secure == "required":
        rotated = control.api.post("/transports/lan/keys/rotate?at_once=true")
        assert rotated.status_code == 200
    put(control, "topics/t", TOPIC)
    a, b, c = hosts = [Host(lab, control, name) for name in "abc"]
    for each in hosts:
        each.start()
    for each in hosts:
        others = {x.name: f"127.0.0.1:{x.port}" for x in hosts if x is not each}
        eventually(lambda e=each, o=others: e.peers() == o, f"the peers of {each.name}")
        eventually(lambda e=each, o=others: e.hears() == o.keys(), f"beacons at {each.name}")
    shown = {e["node"]: e for e in control.api.get("/cluster").json()["engines"]}
    assert shown["a"]["addresses"] == {"lan": f"127.0.0.1:{a.port}"}

    eventually(lambda: heard(control) == 6, "each engine reports that it hears both others")
    assert "peers of lan" in a.platform.run("doctor").stdout

    source = a.client()
    readers = {x.name: x.client().subscribe("t") for x in (b, c)}
    publisher = source.publisher("t")
    eventually(lambda: a.receivers() == {"b", "c"}, "both receivers")
    first = [b"%d" % n for n in range(500)]
    publisher.publish_batch(first).check()
    assert received(readers["b"], 500) == first
    assert received(readers["c"], 500) == first

    # Quarantined: it gets nothing more, and holds nobody back though it confirms nothing.
    quarantine = {"spec": {"quarantined": True}}
    assert control.api.patch("/nodes/c", json=quarantine).status_code == 200
    eventually(lambda: a.peers().keys() == {"b"}, "c is no peer of a any more")
    eventually(lambda: b.peers().keys() == {"a"}, "c is no peer of b any more")
    more = [b"%d" % n + b"x" * 500 for n in range(1_000)]  # ten rings
    got: list[bytes] = []
    for at in range(0, len(more), 20):
        publisher.publish_batch(more[at : at + 20]).check()
        got += received(readers["b"], 20)
    assert got == more
    assert a.receivers() == {"b"}

    # Moved: b starts again at another port, and is found there without anybody's help.
    before, incarnation = b.port, b.platform.shared()
    b.stop()
    b.start()
    assert b.port != before
    assert b.platform.shared() != incarnation
    eventually(lambda: a.peers() == {"b": f"127.0.0.1:{b.port}"}, "the new address")
    with b.client() as there, there.subscribe("t") as again:
        eventually(lambda: a.receivers() == {"b"}, "the new receiver")
        publisher.publish(b"found")
        assert received(again, 1) == [b"found"]
        back, home = there.publisher("t"), source.subscribe("t", start="earliest")
        eventually(lambda: b.receivers() == {"a"}, "the way back")
        back.publish(b"and back")
        while received(home, 1) != [b"and back"]:
            pass

    # The quarantine ends: it is a peer again, without a restart of the others.
    assert control.api.patch("/nodes/c", json={"spec": {"quarantined": False}}).status_code == 200
    eventually(lambda: a.peers().keys() == {"b", "c"}, "c is back", timeout_s=90)
    fresh = c.client().subscribe("t", on_gap="event")  # its engine still has the session of before
    eventually(lambda: "c" in a.receivers(), "c receives", timeout_s=60)
    publisher.publish(b"welcome")
    while received(fresh, 1) != [b"welcome"]:
        pass


@pytest.mark.timeout(180)
def test_peers_outlive_the_service_and_a_restart_without_it(
    control: Running, lab: Lab, eventually: Eventually
) -> None:
    put(control, "transports/lan", {**LAN, "port": free_port()})
    put(control, "topics/t", TOPIC)
    a, b = Host(lab, control, "a"), Host(lab, control, "b")
    for each in (a, b):
        each.start()
    eventually(lambda: a.peers().keys() == {"b"}, "b at a")
    eventually(lambda: b.peers().keys() == {"a"}, "a at b")
    control.stop()
    a.stop()
    a.again()
    assert a.peers() == {"b": f"127.0.0.1:{b.port}"}
    eventually(lambda: b.hears() == {"a"}, "a is heard at its address of before")
    with a.client() as source, b.client() as sink, sink.subscribe("t") as reader:
        publisher = source.publisher("t")
        eventually(lambda: a.platform.overview().receivers, "the receiver")
        publisher.publish(b"x")
        assert received(reader, 1) == [b"x"]


@pytest.mark.timeout(120)
def test_an_engine_that_cannot_be_reached_says_so(
    control: Running, lab: Lab, eventually: Eventually
) -> None:
    put(control, "transports/lan", {**LAN, "port": free_port()})
    a, b = Host(lab, control, "a"), Host(lab, control, "b")
    a.start(bind="0.0.0.0")
    b.start(bind="0.0.0.0", advertise="localhost")

    def errors(name: str) -> Any:
        return control.api.get(f"/nodes/{name}").json()["status"]["errors"]

    eventually(lambda: "bound to every address" in errors("a").get("peers/lan", ""), "the error")
    assert "advertise" in errors("a")["peers/lan"]
    assert errors("b") == {}
    eventually(lambda: a.peers() == {"b": f"127.0.0.1:{b.port}"}, "b at a")
    assert b.peers() == {}
    a.stop()
    a.start(bind="0.0.0.0", advertise="none")
    eventually(lambda: errors("a") == {}, "it says itself that it is no peer")
    assert b.peers() == {}


# --- the service alone ------------------------------------------------------------------------


def topology_of(link: FakeLink, holds: Any) -> Any:
    while not holds(found := link.until("topology")):
        pass
    return found


def test_the_report_of_each_engine_is_shown(control: Running) -> None:
    put(control, "transports/lan", {**LAN, "port": 7400})
    row = {"transport": "lan", "address": "10.0.0.6:7500", "heard_age_s": 0.5, "silent": False}
    peers = [row | {"node": "two"}, row | {"node": "away", "heard_age_s": None, "silent": True}]
    with (
        FakeLink(control, "one", node_id=1, addresses=AT) as one,
        FakeLink(control, "two", node_id=2) as two,
    ):
        answers = [
            threading.Thread(target=one.answer, args=(lambda _: {"peers": peers},)),
            threading.Thread(target=two.answer, args=(lambda _: {"peers": [{"node": 3}]},)),
        ]
        for each in answers:
            each.start()
        found = control.api.get("/cluster/peers").json()
        for each in answers:
            each.join()
    assert found["unanswered"] == ["two"], "an answer that is no report"
    assert [(p["peer"], p["peer_state"], p["silent"]) for p in found["paths"]] == [
        ("away", "down", True),
        ("two", "up", False),
    ]
    for path, words in zip(
        found["paths"],
        (
            "lan to away (10.0.0.6:7500): SILENT, never heard, its engine is not connected",
            "lan to two (10.0.0.6:7500): heard 0.5 s ago",
        ),
        strict=True,
    ):
        assert _path_words(path) == words


def test_the_service_names_peers_by_what_their_engines_announce(control: Running) -> None:
    put(control, "transports/lan", {**LAN, "port": 7400})
    put(control, "transports/fixed", {**LAN, "port": 7600, "peers": ["10.0.0.9:7600"]})
    far = {"lan": {"host": "10.0.0.6", "port": 7500}, "fixed": {"host": "10.0.0.6", "port": 7600}}
    with FakeLink(control, "one", node_id=1, addresses=AT) as one:
        assert topology_of(one, lambda m: True)["peers"] == {"lan": []}
        with FakeLink(control, "two", node_id=2, addresses=far) as two:
            mine = topology_of(two, lambda m: m["peers"]["lan"])["peers"]
            assert mine == {
                "lan": [{"node": "one", "node_id": 1, "host": "10.0.0.5", "port": 7400}]
            }
            told = topology_of(one, lambda m: m["peers"]["lan"])["peers"]
            assert told == {
                "lan": [{"node": "two", "node_id": 2, "host": "10.0.0.6", "port": 7500}]
            }
            near = {"lan": {"host": "127.0.0.1", "port": 7800}}
            with FakeLink(control, "here", node_id=3, host="h2", addresses=near) as here:
                assert len(topology_of(here, lambda m: m["peers"]["lan"])["peers"]["lan"]) == 2
            with FakeLink(control, "beside", node_id=4, host="h2", addresses={}) as beside:
                seen = topology_of(beside, lambda m: m["peers"]["lan"])["peers"]["lan"]
                assert [each["node"] for each in seen] == ["here", "one", "two"]
            seen = topology_of(one, lambda m: True)["peers"]["lan"]
            assert "here" not in [each["node"] for each in seen], "a loopback of another host"
        # two is down, and stays a peer: packets do not depend on the service
        seen = topology_of(one, lambda m: True)["peers"]["lan"]
        assert [each["node"] for each in seen] == ["two"]
        assert control.api.post("/nodes/two/revoke").status_code == 200
        topology_of(one, lambda m: m["peers"] == {"lan": []})
    assert control.api.get("/nodes/two").status_code == 200


def test_a_deleted_node_is_no_peer(control: Running) -> None:
    put(control, "transports/lan", {**LAN, "port": 7400})
    far = {"lan": {"host": "10.0.0.6", "port": 7500}}
    with FakeLink(control, "one", node_id=1, addresses=AT) as one:
        with FakeLink(control, "two", node_id=2, addresses=far):
            topology_of(one, lambda m: m["peers"]["lan"])
        gone = lambda: control.api.delete("/nodes/two").status_code == 200  # noqa: E731
        wait_until(gone, 30.0, "the service notes that the link has ended, and deletes the node")
        topology_of(one, lambda m: m["peers"] == {"lan": []})


@pytest.mark.parametrize(
    ("addresses", "detail"),
    [
        ([], "addresses: allowed is an object"),
        ({f"t{n}": AT["lan"] for n in range(17)}, "at most 16 entries"),
        ({"a b": AT["lan"]}, "allowed is the name of a transport"),
        ({"lan": "10.0.0.5:7400"}, "allowed is an object of host and port"),
        ({"lan": {"host": "0.0.0.0", "port": 7400}}, "not every address of a host"),
        ({"lan": {"host": "224.0.0.1", "port": 7400}}, "not a group"),
        ({"lan": {"host": "host.example", "port": 7400}}, "allowed an IPv4 address"),
        ({"lan": {"host": 5, "port": 7400}}, "allowed an IPv4 address"),
        ({"lan": {"host": "10.0.0.5", "port": 0}}, "allowed 1..65533"),
        ({"lan": {"host": "10.0.0.5", "port": True}}, "allowed 1..65533"),
        ({"lan": {"host": "10.0.0.5"}}, "allowed 1..65533"),
    ],
)
def test_a_hello_with_a_wrong_address_is_refused(
    control: Running, addresses: Any, detail: str
) -> None:
    link = FakeLink.__new__(FakeLink)
    url = control.url.replace("http", "ws", 1) + "/api/v1/engine"
    headers = {"Authorization": f"Bearer {control.enrol()}"}
    with connect(url, additional_headers=headers) as link.socket:
        link.send(
            type="hello",
            protocol=1,
            levels=[1, 2],
            node="bad",
            node_id=5,
            incarnation=1,
            version="0",
            host="h",
            applied_version=0,
            addresses=addresses,
        )
        refused = link.until("refused")
    assert refused["code"] == "invalid_request"
    assert detail in refused["detail"], refused
    assert control.api.get("/nodes/bad").status_code == 404


def test_a_transport_without_a_list_is_not_warned_of(control: Running) -> None:
    spec = {"kind": "udp-unicast", "port": 7600}
    plan = control.api.put("/transports/far?dry_run=true", json={"spec": spec}).json()
    assert plan["warnings"] == []


def test_damaged_peers_are_reported(control: Running, lab: Lab, eventually: Eventually) -> None:
    put(control, "transports/lan", {**LAN, "port": free_port()})
    a = Host(lab, control, "a")
    a.start()
    eventually(lambda: control.api.get("/nodes/a").json()["status"]["state"] == "up", "a")
    a.stop()
    kept = a.platform.directory / "peers.json"
    kept.write_text("{")
    a.again()
    assert a.peers() == {}
    assert a.platform.engine is not None
    assert f"{kept}: " in a.platform.engine.log.read_text()
    eventually(lambda: kept.read_text() != "{", "another file")
    assert load_peers(a.platform.directory) == {"lan": []}
