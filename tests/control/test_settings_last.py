"""Settings that last: the file seeds the platform, joined engines fetch, drift is what runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Eventually
from tests.control.test_link import _engine, _node
from tests.support.control import Running, running, service_of
from tidecast.access import Scope, digest_of, new_key
from tidecast.config.topology import load_topology, topology_from, topology_path
from tidecast.control_link import fetch
from tidecast.control_link.link import load_state
from tidecast.disk import write_atomically
from tidecast.engine.process import choose_topology
from tidecast.errors import ConfigError, ConnectionLost
from tidecast_control.settings import Settings, load_settings

IPC = {"name": "shm", "kind": "ipc"}
WIRE = {"name": "wire", "kind": "udp-multicast", "port": 7710, "allow_faults": True}


@pytest.fixture
def control(settings: Settings, template: Any) -> Iterator[Running]:
    """A service that listens."""
    with running(settings, template.login) as made:
        yield made


def _write(directory: Path, raw: dict[str, Any]) -> Path:
    path = topology_path(directory)
    path.write_text(json.dumps(raw))
    return path


def test_the_file_of_a_first_start_seeds_the_platform(
    empty_database_url: str, tmp_path: Path
) -> None:
    secret, key = new_key("robot", [Scope(pattern="md.>", rights=["publish"])])
    declared = {
        "id": key.id,
        "name": "robot",
        "sha256": key.sha256,
        "scopes": [{"pattern": "md.>", "rights": ["publish"]}],
    }
    topics = [
        {
            "name": "md.eu",
            "mode": "durable",
            "queues": 3,
            "transport": "shm",
            "labels": {"a": "b"},
            "description": "d",
            "rate_bytes_per_s": 1000,
            "id": 17,
        },
        {"name": "md.us"},
    ]
    raw = {"transports": [WIRE, IPC], "topics": topics, "keys": [declared]}
    before = _write(tmp_path, raw).read_bytes()
    settings = load_settings(database_url=empty_database_url, data_dir=tmp_path, port=0)
    with service_of(settings) as service:
        api = service.admin
        found = {
            t["metadata"]["name"]: t["spec"] for t in api.get("/api/v1/transports").json()["items"]
        }
        assert {name: spec["port"] for name, spec in found.items() if spec["kind"] != "ipc"} == {
            "wire": 7710
        }
        assert set(found) == {"wire", "shm"}
        topic = api.get("/api/v1/topics/md.eu").json()
        spec = topic["spec"]
        assert (spec["mode"], spec["queues"], spec["transport"]) == ("durable", 3, "shm")
        assert (spec["wire_id"], spec["rate_bytes_per_s"]) == (17, 1000)
        assert topic["metadata"]["labels"] == {"a": "b"}
        assert api.get("/api/v1/topics/md.us").json()["spec"]["transport"] == "wire"
        robot = service.client()
        robot.headers["Authorization"] = f"Bearer {secret}"
        assert robot.get("/api/v1/auth/me").json()["scopes"] == declared["scopes"]
    assert topology_path(tmp_path).read_bytes() == before


def test_a_file_that_is_wrong_stops_the_first_start(
    empty_database_url: str, tmp_path: Path
) -> None:
    _write(tmp_path, {"transports": [{"name": "m", "kind": "memory"}]})
    settings = load_settings(database_url=empty_database_url, data_dir=tmp_path, port=0)
    with pytest.raises(ConfigError, match="transport m: /spec/kind"), service_of(settings):
        pass


def test_a_revoked_key_of_the_file_ends_at_engines_that_still_declare_it(tmp_path: Path) -> None:
    from tidecast.node.access.keys import KeyRing

    secret, key = new_key("robot", [Scope(pattern=">", rights=["publish"])])
    ring = KeyRing([key], tmp_path / "keys.json")
    assert ring.find(digest_of(secret)) is not None
    over = {"id": key.id, "sha256": key.sha256, "expires": "2020-01-01T00:00:00+00:00"}
    ring.learn([over])
    assert ring.find(digest_of(secret)) is None


# --- engines that join ----------------------------------------------------------------------------


def _fetch(control: Running, directory: Path, token: str | None = None) -> Any:
    topology, path = choose_topology(directory, None)
    return fetch.fetch_topology(
        topology, directory, path, control.url, token or control.enrol(), None
    )


def test_an_engine_that_joins_has_the_platforms_transports_before_it_starts(
    control: Running, tmp_path: Path
) -> None:
    control.api.patch("/transports/multicast", json={"spec": {"port": 7710}})
    directory = tmp_path / "second"
    directory.mkdir()
    fetched = _fetch(control, directory)
    assert fetched.transport("multicast").port == 7710
    [spec] = [
        row["spec"]
        for row in control.api.get("/transports").json()["items"]
        if row["metadata"]["name"] == "multicast"
    ]
    assert fetched.transport("multicast").platform == spec["platform"] != ""
    assert fetched.transport("multicast").group == spec["group"] != "239.255.84.67"
    assert load_topology(topology_path(directory)).transport("multicast").port == 7710
    assert load_state(directory).credential.startswith("tcn_")
    states = control.api.get("/nodes").json()["items"]
    assert [node["status"]["state"] for node in states] == ["down"]  # it only asked
    control.api.patch("/transports/multicast", json={"spec": {"port": 7720}})
    again = _fetch(control, directory, "tce_used_up")  # by its credential
    assert again.transport("multicast").port == 7720


def test_an_engine_without_a_topology_waits_for_its_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "FIRST_S", 0.0)
    topology, path = choose_topology(tmp_path, None)
    nowhere = "http://127.0.0.1:9"
    with pytest.raises(ConnectionLost, match="without a topology of its own"):
        fetch.fetch_topology(topology, tmp_path, path, nowhere, "tce_x", None)
    assert not path.exists()
    known = _write(tmp_path, {"transports": [IPC]})
    own = load_topology(known)
    assert fetch.fetch_topology(own, tmp_path, path, nowhere, "tce_x", None) == own


def test_topics_on_transports_that_the_service_lacks_are_named(tmp_path: Path) -> None:
    raw = {"transports": [WIRE, IPC], "topics": [{"name": "mine"}, {"name": "theirs"}]}
    own = topology_from(raw)
    transports = {"shm": {"kind": "ipc"}}
    kept = fetch._with_transports(own, transports, ["mine", "theirs"], tmp_path)
    assert kept.topics == []
    with pytest.raises(ConfigError, match=r"topics\[0\].transport: wire: allowed shm"):
        fetch._with_transports(own, transports, ["theirs"], tmp_path)


# --- the file, and what runs ----------------------------------------------------------------------


def _status(control: Running, path: str) -> Any:
    return control.api.get(f"/{path}").json()["status"]


def test_drift_is_what_runs_and_the_file_is_what_is_wanted(
    control: Running, short_dir: Path, eventually: Eventually
) -> None:
    engine = _engine(control, short_dir)
    try:
        _check_drift(control, short_dir, eventually, _node(engine).name)
    finally:
        engine.stop()


def _check_drift(control: Running, directory: Path, eventually: Eventually, node: str) -> None:
    running = load_topology(topology_path(directory)).transports[0]
    name, port = running.name, running.port

    def file_port() -> int:
        return load_topology(topology_path(directory)).transport(name).port

    def raw() -> dict[str, Any]:
        return {
            "kind": running.kind,
            "group": running.group,
            "interface": running.interface,
            "allow_faults": running.allow_faults,
        }

    control.api.put(f"/transports/{name}", json={"spec": raw() | {"port": port + 10}})

    def needed() -> list[Any]:
        found = _status(control, f"transports/{name}")["conditions"]
        return [c for c in found if c["type"] == "RestartNeeded"]

    wanted = f"port: runs with {port}, wanted is {port + 10}"  # it differed before, by another
    eventually(lambda: any(wanted in c["message"] for c in needed()), "the drift")
    status = _status(control, f"transports/{name}")
    assert (status["drift"], status["observed_generation"]) == (True, 0)
    (restart,) = needed()
    assert restart["node"] == node
    assert wanted in restart["message"]
    assert "restart this engine" in restart["message"]
    shown = _status(control, f"nodes/{node}")["conditions"][0]["message"]
    assert f"restart it for transport/{name}" in shown
    assert file_port() == port + 10
    control.api.put(f"/transports/{name}", json={"spec": raw() | {"port": port}})
    eventually(lambda: not _status(control, f"transports/{name}")["drift"], "what runs is wanted")
    assert file_port() == port  # the next start would have opened the other port
    generation = control.api.get(f"/transports/{name}").json()["metadata"]["generation"]
    assert _status(control, f"transports/{name}")["observed_generation"] == generation


# --- files ----------------------------------------------------------------------------------------


def _fifo(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [_fifo, Path.mkdir])
def test_only_regular_files_are_replaced(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "topology.yaml"
    make(path)
    with pytest.raises(OSError, match="not a regular file"):
        write_atomically(path, b"x")
    with pytest.raises(ConfigError, match="allowed is a regular file"):
        choose_topology(tmp_path, path)
    assert [p.name for p in tmp_path.iterdir()] == ["topology.yaml"]
    assert not path.is_file()


def test_a_device_is_never_replaced() -> None:
    with pytest.raises(OSError, match="not a regular file"):
        write_atomically(Path("/dev/null"), b"x")
    assert Path("/dev/null").is_char_device()


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
