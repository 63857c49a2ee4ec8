"""The gateway of a real engine: commands from afar, kill -9, restarts, connections that break."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Eventually
from tests.support.gateways import Served, until_event
from tests.support.lab import Lab, Platform, topology
from tests.support.proxy import Proxy

import tidecast
from tidecast.engine.process import read_state
from tidecast.errors import SequenceGap
from tidecast.events import GatewayBack, GatewayLost

TIMEOUT_S = 30.0


@pytest.fixture
def served(lab: Lab) -> Served:
    return Served(lab)


@pytest.fixture
def proxy(served: Served) -> Iterator[Proxy]:
    made = Proxy(served.port)
    yield made
    made.close()


def payloads(subscription: Any, n: int) -> list[bytes]:
    return [bytes(subscription.next(timeout=TIMEOUT_S).data) for _ in range(n)]


def afar(served: Served, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command that knows nothing but URL and token."""
    environment = dict(os.environ) | {"TIDECAST_TOKEN": served.token}
    return served.lab.run(
        *arguments, "--server", f"tidecast://127.0.0.1:{served.port}", env=environment, **options
    )


def test_commands_from_afar(served: Served) -> None:
    state = read_state(served.platform.directory)
    assert state is not None
    assert state.gateway == f"tidecast://127.0.0.1:{served.port}"
    token = served.platform.directory / "gateway.token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    with served.connect().subscribe("logs") as there:
        afar(served, "pub", "logs", "--message", "hello", "--message", "world")
        assert payloads(there, 2) == [b"hello", b"world"]
    log = served.platform.engine.log.read_text() if served.platform.engine else ""
    assert served.token not in log


def test_subscriptions_are_managed_from_afar(lab: Lab) -> None:
    served = Served(lab, [{"name": "orders", "transport": "ipc", "mode": "durable"}])
    afar(served, "subscription", "create", "orders", "billing", "--where", "size > 1")
    served.connect().publish("orders", b"one")
    (found,) = json.loads(afar(served, "subscription", "list", "--json").stdout)
    assert (found["pattern"], found["name"], found["where"]) == ("orders", "billing", "size > 1")
    afar(served, "subscription", "pause", "orders", "billing")
    afar(served, "queue", "pause", "orders", "0")
    show = ("subscription", "show", "orders", "billing", "--json")
    (cursor,) = json.loads(afar(served, *show).stdout)["cursors"]
    assert (cursor["reason"], cursor["paused_by"]) == ("paused", ["subscription", "queue"])
    wrong = afar(
        served, "subscription", "seek", "orders", "billing", "--to", "0:99999", check=False
    )
    assert "error: start_tokens: queue 0: 99999: allowed 0 to" in wrong.stderr
    afar(served, "subscription", "delete", "orders", "billing", "--yes")
    assert json.loads(afar(served, "subscription", "list", "--json").stdout) == []


def test_a_wrong_token_is_one_line(served: Served) -> None:
    done = served.lab.run(
        "sub",
        "logs",
        "--server",
        f"tidecast://127.0.0.1:{served.port}",
        "--token",
        "wrong",
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "refuses the token" in done.stderr


@pytest.mark.long
def test_what_a_killed_client_had_is_released(served: Served) -> None:
    code = (
        "import sys, tidecast.sync\n"
        "c = tidecast.sync.connect(sys.argv[1], token=sys.argv[2])\n"
        "s = c.subscribe('held').open()\n"
        "p = c.publisher('held')\n"
        "p.publish(b'from the dead')\n"
        "s.next(timeout=20)\n"
        "sys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.read()\n"
    )
    url = f"tidecast://127.0.0.1:{served.port}"
    child = served.lab._process([sys.executable, "-c", code, url, served.token])
    with served.connect().subscribe("held", start=tidecast.Earliest()) as there:
        assert child.line() == "ready"
        child.signal(signal.SIGKILL)
        child.code()
        # Its subscription is gone, or the ring would fill up: it reads no more.
        with served.connect().publisher("held") as publisher:
            for _ in range(8):
                publisher.publish_batch([bytes(1000)] * 1000, timeout=TIMEOUT_S).check()
                payloads(there, 1000)


def test_an_engine_that_is_killed_and_started_again(served: Served) -> None:
    far = served.connect()
    publisher = far.publisher("again")
    there = far.subscribe("again", on_gap="event").open()
    publisher.publish(b"1")
    assert payloads(there, 1) == [b"1"]
    served.platform.kill()
    until_event(far, GatewayLost)
    publisher.publish(b"2")
    served.start()
    assert not until_event(far, GatewayBack).resumed
    found = payloads(there, 1)
    publisher.publish(b"3")
    while found[-1] != b"3":
        found += payloads(there, 1)
    assert found in ([b"2", b"3"], [b"1", b"2", b"3"], [b"3"]), "1 may have been unconfirmed"
    far.close()


def test_two_remote_clients_over_cuts_and_delays(served: Served, proxy: Proxy) -> None:
    near, far = served.connect(), served.connect(proxy.port)
    with near.subscribe("busy") as here, far.publisher("busy") as publisher:
        sent = [b"%d" % i + bytes(300) for i in range(20_000)]
        for round_ in range(4):
            part = sent[round_ * 5000 : (round_ + 1) * 5000]
            proxy.cut_after(1 << (17 + round_))
            publisher.publish_batch(part, timeout=TIMEOUT_S).check()
            if round_ % 2:
                proxy.hold()
                publisher.publish_batch([], timeout=TIMEOUT_S)
                proxy.resume()
            assert payloads(here, 5000) == part
        assert proxy.connections >= 4
        with pytest.raises(tidecast.Timeout):
            here.next(timeout=0.2)


@pytest.mark.long
def test_up_serves_a_gateway_and_off_does_not(lab: Lab, eventually: Eventually) -> None:
    platform: Platform = lab.platform(topology({"name": "ipc", "kind": "ipc"}), start=False)
    platform.run("up", "--detach", "--no-control")
    eventually(lambda: read_state(Path(platform.directory)), "engine.json")
    state = read_state(Path(platform.directory))
    assert state is not None
    token = (platform.directory / "gateway.token").read_text().strip()
    assert lab.connect(state.gateway, token=token).health().healthy
    platform.run("down")
    plain = lab.platform(topology({"name": "ipc", "kind": "ipc"}))
    assert not (plain.directory / "gateway.token").exists()
    state = read_state(Path(plain.directory))
    assert state is not None
    assert not state.gateway


@pytest.mark.parametrize("way", ["socket", "gateway"])
def test_an_unknown_producer_begins_where_it_says(lab: Lab, way: str) -> None:
    """The topic may have forgotten it, and cannot know what came before. Then it knows."""
    topic = {"name": "orders", "mode": "durable", "queues": 1, "fsync_interval_ms": 2}
    served = Served(lab, [topic])
    client = served.connect() if way == "gateway" else served.platform.connect()

    def begin(first_seq: int) -> Any:
        return client.publisher("orders", producer="unknown", first_seq=first_seq)

    with begin(5_001) as publisher:
        publisher.publish(b"5001", ack="durable", timeout=TIMEOUT_S)
        assert (publisher.position, publisher.durable_position) == (5_001, 5_001)
    for wrong in (5_003, 1 << 40):
        with pytest.raises(SequenceGap, match="5002 is due") as refused:
            begin(wrong)
        assert refused.value.expected == 5_002
    for first_seq, bodies in ((4_000, [b"4000"]), (5_001, [b"again", b"5002"])):
        with begin(first_seq) as publisher:
            publisher.publish_batch(bodies, ack="durable", timeout=TIMEOUT_S).check()
    served.platform.kill()
    served.start()
    near = served.platform.connect()
    with pytest.raises(SequenceGap, match="5003 is due"):
        near.publisher("orders", producer="unknown", first_seq=5_004)
    assert [bytes(each.data) for each in near.read("orders")] == [b"5001", b"5002"]
