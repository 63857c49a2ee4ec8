"""Engines and clients of the last tag beside those of the checkout: a rolling upgrade midway."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from tests.conftest import Eventually
from tests.support.builds import NEW, RELEASE, Build, old
from tests.support.control_process import ControlProcess
from tests.support.durable import rows_of
from tests.support.gateways import until_event
from tests.support.lab import Lab, Platform, multicast, topology
from tests.support.ports import free_port
from tests.support.progress import NUMBER, noted, progress_file

from tidecast.config.topology import TopicConfig
from tidecast.events import GatewayBack
from tidecast.node.durable.topic import DurableTopic
from tidecast.node.sealing.wire_keys import FILE_NAME

FIXTURES = (old,)
pytestmark = pytest.mark.long
COUNT = 50_000
ACKED = 5_000
TIMEOUT_S = 60.0
ORDERS: dict[str, Any] = {"name": "orders", "mode": "durable", "queues": 2, "fsync_interval_ms": 5}


def keeps(platform: Platform) -> bool:
    return platform.counters("queue").get("owner_epoch", 0) > 0


def consumed(seen: Path, acked: int) -> bool:
    """The file of a `keep` has each number up to ``acked``, and none twice."""
    raw = seen.read_bytes()
    found = sorted(n for (n,) in NUMBER.iter_unpack(raw[: len(raw) // NUMBER.size * NUMBER.size]))
    return len(found) >= acked and found == list(range(1, len(found) + 1))


def numbers_of(directory: Path) -> list[int]:
    """The numbers in the log of the topic, sorted, as this build reads them."""
    topic = DurableTopic.open(
        TopicConfig(**ORDERS), directory, time.time_ns(), owner=1000, name="test"
    )
    found = sorted(NUMBER.unpack_from(payload)[0] for _, _, _, payload, _ in rows_of(topic))
    topic.close()
    return found


@pytest.fixture(params=["old to new", "new to old"])
def pair(request: pytest.FixtureRequest, old: Build) -> tuple[Build, Build]:
    """The build that sends, and the build that receives."""
    return (old, NEW) if request.param == "old to new" else (NEW, old)


def lossy(platform: Platform) -> None:
    """The engine drops a tenth of the packets it receives."""
    platform.run("faults", "set", "--drop", "0.1", "--seed", "7")


KINDS = ("sealed multicast", "unicast", "sealed unicast")


def carriers(kind: str, pair: tuple[Build, Build]) -> list[dict[str, Any]]:
    """The transport at both builds; the new one runs three lanes, which the tag does not know."""
    sealed = {"secure": "required"} if kind.startswith("sealed") else {}
    if kind.endswith("multicast"):
        made = [multicast(**sealed)] * 2
    else:
        ports = [free_port(), free_port()]
        common = {
            "name": "lan",
            "kind": "udp-unicast",
            "interface": "127.0.0.1",
            "allow_faults": True,
        }
        made = [
            common | sealed | {"port": ports[k], "peers": [f"127.0.0.1:{ports[1 - k]}"]}
            for k in range(2)
        ]
    return [each | ({"lanes": 3} if b is NEW else {}) for each, b in zip(made, pair, strict=True)]


def started(
    lab: Lab, pair: tuple[Build, Build], kind: str, topics: list[Any], names: tuple[str, str]
) -> tuple[Platform, Platform]:
    """An engine of each build; keys are made by this build, and copied as an operator would."""
    wires = carriers(kind, pair)
    made = [
        lab.platform(topology(wire, topics=topics, name=name), start=False)
        for wire, name in zip(wires, names, strict=True)
    ]
    if kind.startswith("sealed"):
        new = made[pair.index(NEW)]
        new.run("wire", "keys", "new", wires[0]["name"])
        shutil.copy(new.directory / FILE_NAME, made[pair.index(NEW) - 1].directory / FILE_NAME)
    for build, platform in zip(pair, made, strict=True):
        build.start(lab, platform)
    return made[0], made[1]


@pytest.mark.parametrize("kind", KINDS)
def test_sealed_and_unicast_transports_and_lanes_of_both_builds(
    lab: Lab, pair: tuple[Build, Build], eventually: Eventually, kind: str
) -> None:
    topics = [{"name": "ticks"}, ORDERS | {"owner": "keeper"}]
    sender, keeper = started(lab, pair, kind, topics, ("sender", "keeper"))
    for each in (sender, keeper):
        lossy(each)
    reader = pair[1].role(lab, "collect", keeper.url, "ticks", str(COUNT))
    ticks, progress = progress_file(lab.directory / "ticks"), progress_file(lab.directory / "acks")
    seen = lab.directory / "seen"
    seen.touch()
    pair[1].role(lab, "keep", keeper.url, "orders", str(seen))
    live = pair[0].role(lab, "count", sender.url, "ticks", str(ticks))
    writer = pair[0].role(lab, "produce", sender.url, "orders", str(progress), "0.005")
    live.tell("go")
    writer.tell("go")
    assert reader.line() == "wrong 0"
    eventually(lambda: noted(progress) > ACKED, "acks", timeout_s=TIMEOUT_S)
    writer.kill()
    eventually(lambda: consumed(seen, noted(progress)), "all consumed", timeout_s=TIMEOUT_S)
    for each in (sender, keeper):
        counters = each.counters("receiver")
        assert counters.get("tag_failed", 0) == counters.get("plain_refused", 0) == 0
        if kind.startswith("sealed"):
            rows = [each.counters(row) for row in ("sender", "receiver")]
            assert sum(row.get("opened", 0) for row in rows) > 0
    keeper.stop()
    stored = numbers_of(keeper.directory)
    assert stored == list(range(1, len(stored) + 1)), "each once"
    assert len(stored) >= noted(progress)


def test_an_old_engine_names_the_lanes_that_it_does_not_know(old: Build) -> None:
    said = old.python(
        "from tidecast.config.topology import topology_from\n"
        "from tidecast.errors import ConfigError\n"
        "try: topology_from({'transports': [{'name': 'lan', 'lanes': 3}]})\n"
        "except ConfigError as problem: print(problem)"
    )
    assert "transports[0]" in said
    assert "lanes" in said


def test_the_old_build_is_that_of_the_release(old: Build) -> None:
    told = old.python("import tidecast; print(tidecast.__version__, tidecast.__file__)")
    assert told == f"{RELEASE[1:]} {old.directory}/engine/tidecast/__init__.py"


def test_live_messages_arrive_once_in_order_under_loss(lab: Lab, pair: tuple[Build, Build]) -> None:
    wire = multicast()
    left, right = (
        build.engine(lab, topology(wire, topics=[{"name": "ticks"}], name=name))
        for build, name in zip(pair, ("left", "right"), strict=True)
    )
    for each in (left, right):
        lossy(each)
    reader = pair[1].role(lab, "collect", right.url, "ticks", str(COUNT))
    progress = progress_file(lab.directory / "progress")
    writer = pair[0].role(lab, "count", left.url, "ticks", str(progress))
    writer.tell("go")
    assert reader.line() == "wrong 0"
    assert left.counters("publication")["packets_resent"] > 0, "losses were repaired"


@pytest.mark.parametrize("how", ["live", "durable"])
def test_a_client_at_the_gateway_of_the_other_build(
    lab: Lab, pair: tuple[Build, Build], eventually: Eventually, how: str
) -> None:
    client, gateway = pair
    address = f"127.0.0.1:{free_port()}"
    topics: list[Any] = [{"name": "ticks"}, ORDERS | {"owner": "left"}]
    settings = topology({"name": "ipc", "kind": "ipc"}, topics=topics, name="left")
    served = gateway.engine(lab, settings, "--gateway", address)
    token = (served.directory / "gateway.token").read_text().strip()
    url, progress = f"tidecast://{address}", progress_file(lab.directory / "progress")
    if how == "live":
        reader = client.role(lab, "collect", url, "ticks", str(COUNT), TIDECAST_TOKEN=token)
        writer = client.role(lab, "count", url, "ticks", str(progress), TIDECAST_TOKEN=token)
        writer.tell("go")
        assert reader.line() == "wrong 0"
        return
    seen = lab.directory / "seen"
    seen.touch()
    client.role(lab, "keep", url, "orders", str(seen), TIDECAST_TOKEN=token)
    writer = client.role(
        lab, "produce", url, "orders", str(progress), "0.005", TIDECAST_TOKEN=token
    )
    writer.tell("go")
    eventually(lambda: noted(progress) > ACKED, "acks", timeout_s=TIMEOUT_S)
    writer.kill()
    eventually(lambda: consumed(seen, noted(progress)), "all consumed", timeout_s=TIMEOUT_S)


def test_the_owner_of_the_other_build_acks_what_is_durable(
    lab: Lab, pair: tuple[Build, Build], eventually: Eventually
) -> None:
    wire, topics = multicast(), [ORDERS | {"owner": "keeper"}]
    sender, keeper = (
        build.engine(lab, topology(wire, topics=topics, name=name))
        for build, name in zip(pair, ("sender", "keeper"), strict=True)
    )
    for each in (sender, keeper):
        lossy(each)
    progress, seen = progress_file(lab.directory / "progress"), lab.directory / "seen"
    seen.touch()
    pair[1].role(lab, "keep", keeper.url, "orders", str(seen))
    writer = pair[0].role(lab, "produce", sender.url, "orders", str(progress), "0.005")
    writer.tell("go")
    eventually(lambda: noted(progress) > ACKED, "acks", timeout_s=TIMEOUT_S)
    writer.kill()
    eventually(lambda: consumed(seen, noted(progress)), "all consumed", timeout_s=TIMEOUT_S)
    keeper.stop()
    stored = numbers_of(keeper.directory)
    assert stored == list(range(1, len(stored) + 1)), "each once"
    assert len(stored) >= noted(progress)


def test_a_client_stays_while_its_gateway_changes_to_the_other_build(
    lab: Lab, pair: tuple[Build, Build]
) -> None:
    """The client is of this build: an upgrade of the engine beneath it, and the way back."""
    address = f"127.0.0.1:{free_port()}"
    ipc = {"name": "ipc", "kind": "ipc"}
    served = pair[0].engine(lab, topology(ipc, topics=[{"name": "ticks"}]), "--gateway", address)
    token = (served.directory / "gateway.token").read_text().strip()
    client = lab.connect(f"tidecast://{address}", token=token)
    reader, writer = client.subscribe("ticks", on_gap="event"), client.publisher("ticks")
    for number in range(100):
        writer.publish(b"%d" % number, flush=True)
    found = [bytes(reader.next(timeout=TIMEOUT_S).data) for _ in range(100)]
    served.kill()
    pair[1].start(lab, served, "--gateway", address)
    until_event(client, GatewayBack)
    writer.publish(b"100", flush=True)
    found.append(bytes(reader.next(timeout=TIMEOUT_S).data))
    assert found == [b"%d" % number for number in range(101)]


def test_an_engine_of_the_other_build_takes_a_topic_over(
    lab: Lab, pair: tuple[Build, Build], eventually: Eventually
) -> None:
    """Nothing that the first acked is lost or stored twice, in a log that both have written."""
    shared, wire = lab.directory / "shared", multicast()
    leases = {"directory": str(shared), "lease_s": 1.0}
    topics = [ORDERS | {"owner": "*"}]
    first = pair[0].engine(lab, topology(wire, topics=topics, name="first", leases=leases))
    eventually(lambda: keeps(first), "first keeps the topic", timeout_s=TIMEOUT_S)
    second = pair[1].engine(lab, topology(wire, topics=topics, name="second", leases=leases))
    progress, seen = progress_file(lab.directory / "progress"), lab.directory / "seen"
    seen.touch()
    pair[1].role(lab, "keep", second.url, "orders", str(seen))
    writer = pair[1].role(lab, "produce", second.url, "orders", str(progress), "0.005")
    writer.tell("go")
    eventually(lambda: noted(progress) > ACKED, "acked by first", timeout_s=TIMEOUT_S)
    first.kill()
    eventually(lambda: keeps(second), "second keeps it", timeout_s=TIMEOUT_S)
    at = noted(progress)
    eventually(lambda: noted(progress) > at + ACKED, "acked by second", timeout_s=TIMEOUT_S)
    writer.kill()
    eventually(lambda: consumed(seen, noted(progress)), "all consumed", timeout_s=TIMEOUT_S)
    second.stop()
    stored = numbers_of(shared)
    assert stored == list(range(1, len(stored) + 1)), "each once"
    assert len(stored) >= noted(progress)


def test_an_old_engine_holds_the_level_back_after_the_upgrade_of_the_service(
    lab: Lab, old: Build, eventually: Eventually
) -> None:
    """The service goes first; it raises the level when no engine of the version before is left."""
    data_dir = lab.directory / "control"
    data_dir.mkdir()
    before = ControlProcess(data_dir, **old.options()["env"])
    try:
        before.start()
    finally:
        before.stop()
    service = ControlProcess(data_dir)
    try:
        service.start()
        with service.admin() as admin:
            prove_levels(lab, old, eventually, service.url, admin)
    finally:
        service.stop()


def prove_levels(
    lab: Lab, old: Build, eventually: Eventually, url: str, admin: httpx.Client
) -> None:
    """An old and a new engine join at level 1; the level is raised once the old one is new too."""

    def environment(name: str) -> dict[str, str]:
        token = admin.post("/enrolments", json={"name": name}).json()["token"]
        return {"TIDECAST_CONTROL_URL": url, "TIDECAST_ENROL_TOKEN": token}

    def engines() -> dict[str, Any]:
        return {each["node"]: each for each in admin.get("/cluster").json()["engines"]}

    def up(name: str, level_max: int) -> bool:
        found = engines().get(name, {})
        return (found.get("state"), found.get("level_max")) == ("up", level_max)

    wire = multicast()
    assert admin.get("/cluster").json()["level"] == 1
    for build, name in ((old, "left"), (NEW, "right")):
        made = lab.platform(topology(wire, name=name), start=False)
        build.start(lab, made, **environment(name))
        if build is old:
            left = made
    eventually(lambda: up("left", 1) and up("right", 2), "both are up", timeout_s=TIMEOUT_S)
    assert {each["level"] for each in engines().values()} == {1}
    prove_lanes(eventually, admin, wire["name"])
    refused = admin.post("/cluster/finalize")
    assert refused.status_code == 409
    assert "node left (0.1.0)" in refused.json()["detail"]
    left.kill()
    NEW.start(lab, left, TIDECAST_CONTROL_URL=url)
    eventually(
        lambda: not conditions(admin, wire["name"], "Error"), "it has lanes", timeout_s=TIMEOUT_S
    )
    admin.patch(f"/transports/{wire['name']}", json={"spec": {"lanes": 1}})
    eventually(  # an engine of the tag refuses a topology file with lanes, and starts below
        lambda: conditions(admin, wire["name"], "RestartNeeded").keys() == {"left"},
        "its file has one lane again",
        timeout_s=TIMEOUT_S,
    )
    eventually(lambda: up("left", 2), "it is upgraded", timeout_s=TIMEOUT_S)
    assert admin.post("/cluster/finalize").status_code == 200
    eventually(
        lambda: {each["level"] for each in engines().values()} == {2},
        "both write level 2",
        timeout_s=TIMEOUT_S,
    )
    left.kill()
    old.begin(lab, left, TIDECAST_CONTROL_URL=url)
    eventually(lambda: engines()["left"]["refused"], "it is refused", timeout_s=TIMEOUT_S)
    assert "install tidecast >= 0.2.0" in engines()["left"]["refused"]


def conditions(admin: httpx.Client, transport: str, kind: str) -> dict[str, str]:
    """Messages of a transport's conditions of a kind, by node."""
    status = admin.get(f"/transports/{transport}").json()["status"]
    return {each["node"]: each["message"] for each in status["conditions"] if each["type"] == kind}


def prove_lanes(eventually: Eventually, admin: httpx.Client, transport: str) -> None:
    """The old engine ignores lanes and says that it took them; the service knows better."""
    assert conditions(admin, transport, "Error") == {}
    changed = admin.patch(f"/transports/{transport}", json={"spec": {"lanes": 3}})
    assert changed.status_code == 200, changed.text
    eventually(
        lambda: conditions(admin, transport, "RestartNeeded").keys() == {"right"},
        "the new engine needs a restart for them",
        timeout_s=TIMEOUT_S,
    )
    errors = conditions(admin, transport, "Error")
    assert errors.keys() == {"left"}
    assert "lanes: 3: engine 0.1.0 does not know it and runs one lane" in errors["left"]
    assert admin.get(f"/transports/{transport}").json()["status"]["drift"] is True
