"""Lanes that REST sets for unicast engines without a list of peers, while they run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Eventually
from tests.control.test_link import control
from tests.control.test_unicast_peers import LAN, TOPIC, Host, lab, put, received
from tests.support.control import Running
from tests.support.lab import Lab
from tests.support.ports import free_port
from tidecast.client.links.socket_session import EngineControl

FIXTURES = (control, lab)
SESSIONS = 6
ORDERS = {"transport": "lan", "mode": "durable", "owner": "c", "fsync": "batch", "queues": 2}


def lanes_of(host: Host) -> int:
    """The lanes that its engine runs."""
    with EngineControl(host.platform.directory) as engine:
        names = [row["name"] for row in engine.stats()["sender"]]
    return len([name for name in names if name.partition("/")[0] == "lan"])


def needs_restart(control: Running) -> dict[str, str]:
    """The engines that run another transport than is wanted, and in what."""
    found = control.api.get("/transports/lan").json()["status"]["conditions"]
    return {c["node"]: c["message"] for c in found if c["type"] == "RestartNeeded"}


def check_both_ways(hosts: list[Host], eventually: Eventually) -> None:
    """Several sessions of each engine come to both others, each in its order."""
    clients = [host.client() for host in hosts]
    for client, host in zip(clients, hosts, strict=True):
        others = [(x, c.subscribe("t")) for x, c in zip(hosts, clients, strict=True) if x != host]
        wanted = {x.name for x, _ in others}
        publishers = [client.publisher("t") for _ in range(SESSIONS)]
        eventually(lambda h=host, w=wanted: h.receivers() == w, f"receivers of {host.name}")
        head = host.name.encode()
        sent = [b"%s %d %d" % (head, k, i) for i in range(100) for k in range(SESSIONS)]
        for at, payload in enumerate(sent):
            publishers[at % SESSIONS].publish(payload)
        for publisher in publishers:
            publisher.flush()
        for _, reader in others:
            found = received(reader, len(sent))
            others_messages = [m for m in found if not m.startswith(head)]
            assert not others_messages
            assert sorted(found) == sorted(sent)
            for k in range(SESSIONS):
                mine = [m for m in found if m.startswith(b"%s %d " % (head, k))]
                assert mine == sent[k::SESSIONS]
        used = {row["lane"] for row in host.platform.overview().publications}
        assert used == set(range(lanes_of(host)))
        for _, reader in others:
            reader.close()
        for publisher in publishers:
            publisher.close()
    for client in clients:
        client.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("secure", ["off", pytest.param("required", marks=pytest.mark.long)])
def test_lanes_change_engine_by_engine_while_messages_flow(
    control: Running, lab: Lab, eventually: Eventually, secure: str
) -> None:
    put(control, "transports/lan", {**LAN, "port": free_port(), "secure": secure})
    if secure == "required":
        control.api.post("/transports/lan/keys/rotate?at_once=true")
    put(control, "topics/t", TOPIC)
    hosts = [Host(lab, control, name) for name in "abc"]
    for host in hosts:
        host.start()
    put(control, "topics/orders", ORDERS)
    for host in hosts:
        eventually(lambda h=host: len(h.hears()) == 2, f"beacons at {host.name}")
    check_both_ways(hosts, eventually)

    for refused in (0, 9, "2"):
        answer = control.api.patch("/transports/lan", json={"spec": {"lanes": refused}})
        assert answer.status_code == 422
        assert "lanes" in answer.text
    producer = hosts[0].client().publisher("orders", producer="p")
    producer.publish(b"0", ack="durable")
    changed: Any = control.api.patch("/transports/lan", json={"spec": {"lanes": 3}})
    assert changed.status_code == 200, changed.text
    eventually(lambda: needs_restart(control).keys() == {"a", "b", "c"}, "all need a restart")
    assert "lanes: runs with 1, wanted is 3" in needs_restart(control)["a"]
    check_both_ways(hosts, eventually)
    for count, host in enumerate(reversed(hosts), 1):
        host.stop()
        host.again()
        assert lanes_of(host) == 3
        left = {x.name for x in hosts[: len(hosts) - count]}
        eventually(lambda w=left: needs_restart(control).keys() == w, f"{host.name} is done")
        for each in hosts:
            eventually(lambda h=each: len(h.hears()) == 2, f"beacons at {each.name}")
        check_both_ways(hosts, eventually)
        if host.name != "a":  # its client lives in the engine that publishes
            producer.publish(b"%d" % count, ack="durable")
    assert control.api.get("/transports/lan").json()["status"]["drift"] is False
