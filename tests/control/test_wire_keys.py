"""Secrets of sealed transports: handed to engines alone, rotated by hand, by age, by removal."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import Session, select

from tests.conftest import Eventually
from tests.support.control import Running, Service, running
from tests.support.lab import multicast, topology
from tidecast.config.topology import load_topology, topology_from
from tidecast.control_link import fetch
from tidecast.control_link.fetch import fetch_topology
from tidecast.control_link.link import ControlLink
from tidecast.control_link.wire_keys import keep_wire_keys
from tidecast.engine.process import Engine, make_node
from tidecast.errors import ConfigError, ConnectionLost
from tidecast.node.sealing.wire_keys import FILE_NAME, load_wire_keys
from tidecast_control.kit.models import utc_now
from tidecast_control.settings import Settings
from tidecast_control.wire_keys import service as wire_keys
from tidecast_control.wire_keys.models import WireEpochRow

KEYS = "/transports/multicast/keys"


@pytest.fixture
def control(settings: Settings, template: Any) -> Iterator[Running]:
    with running(settings, template.login) as made:
        yield made


@pytest.fixture
def engine(control: Running, short_dir: Path) -> Iterator[Engine]:
    """An engine that has registered; its transport takes sealed packets."""
    path = short_dir / "topology.yaml"
    path.write_text(json.dumps(topology(multicast(secure="optional"))))

    def link(node: Any, store: Any) -> ControlLink:
        return ControlLink(node, store, control.url, token=control.enrol(), seed=1)

    made = Engine(
        short_dir,
        load_topology(path),
        topology_file=path,
        companions=(link,),
        node_factory=make_node,
    )
    made.start()
    yield made
    made.stop()


def epochs_at(directory: Path) -> list[int]:
    try:
        return [
            each.epoch for each in load_wire_keys(directory / FILE_NAME).transports["multicast"]
        ]
    except Exception:  # noqa: BLE001  (not there yet)
        return []


def test_a_secret_goes_to_engines_alone(
    control: Running, engine: Engine, short_dir: Path, eventually: Eventually
) -> None:
    assert control.api.get(KEYS).json() == {"transport": "multicast", "epochs": []}
    dry = control.api.post(f"{KEYS}/rotate?dry_run=true").json()
    assert dry["action"] == "create"
    assert control.api.get(KEYS).json()["epochs"] == []
    assert control.api.post(f"{KEYS}/rotate").status_code == 200
    eventually(lambda: epochs_at(short_dir) == [1], "the first epoch at the engine")
    assert control.api.post(f"{KEYS}/rotate").status_code == 200
    eventually(lambda: epochs_at(short_dir) == [2], "a waiting epoch is replaced")
    [held] = load_wire_keys(short_dir / FILE_NAME).transports["multicast"]
    told = [control.api.get(path).text for path in (KEYS, "/audit", "/export", "/transports")]
    assert held.secret_hex[:16] not in "".join(told)
    assert [
        entry["action"] for entry in json.loads(told[1])["items"] if entry["kind"] == "wire_key"
    ] == ["rotate", "rotate"]
    [shown] = control.api.get(KEYS).json()["epochs"]
    assert (shown["epoch"], shown["state"]) == (2, "waiting")
    assert control.api.post(f"{KEYS}/rotate?at_once=true").status_code == 200
    eventually(lambda: epochs_at(short_dir) == [3], "the epoch that ends all others")
    assert control.api.get(KEYS).json()["epochs"][0]["state"] == "active"
    node: Any = engine.node
    eventually(lambda: node.wire_keys.state()[0]["epoch"] == 3, "the epoch in use")


def test_a_new_engine_has_the_secret_before_it_opens_its_transport(
    control: Running, short_dir: Path
) -> None:
    control.api.post(f"{KEYS}/rotate?at_once=true")
    path = short_dir / "topology.yaml"
    fetched = fetch_topology(
        topology_from({"transports": [multicast()]}),
        short_dir,
        path,
        control.url,
        control.enrol(),
        None,
    )
    assert fetched.transports[0].name == "multicast"
    assert epochs_at(short_dir) == [1]
    assert (short_dir / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_a_removed_node_ends_the_secret_that_it_has(
    control: Running, engine: Engine, short_dir: Path, eventually: Eventually
) -> None:
    control.api.post(f"{KEYS}/rotate?at_once=true")
    eventually(lambda: epochs_at(short_dir) == [1], "the first epoch at the engine")
    assert engine.node is not None
    name = engine.node.name
    assert control.api.post(f"/nodes/{name}/revoke").status_code == 200
    states = [(e["epoch"], e["state"]) for e in control.api.get(KEYS).json()["epochs"]]
    assert states == [(1, "active"), (2, "waiting")]
    assert epochs_at(short_dir) == [1], "it never gets the second"


def test_unknown_transports_and_those_without_packets_are_refused(control: Running) -> None:
    assert control.api.get("/transports/none/keys").status_code == 404
    assert control.api.post("/transports/none/keys/rotate").status_code == 404
    control.api.put("/transports/here", json={"spec": {"kind": "ipc"}})
    refused = control.api.post("/transports/here/keys/rotate")
    assert refused.status_code == 409
    assert "has no packets to seal" in refused.json()["detail"]


def test_old_secrets_are_rotated_and_ended_ones_deleted(service: Service, api: Any) -> None:
    assert api.post(f"/api/v1{KEYS}/rotate?at_once=true").status_code == 200
    with service.ctx.db.begin() as session:
        wire_keys.tend(session, 3600)
        assert _rows(session) == [1]
        wire_keys.tend(session, 0)
        [row] = session.exec(select(WireEpochRow)).all()
        row.created_at = utc_now() - timedelta(hours=2)
        session.add(row)
        session.flush()
        wire_keys.tend(session, 0)
        assert _rows(session) == [1]
        wire_keys.tend(session, 3600)
        assert _rows(session) == [1, 2]
        row.retire_at = utc_now()
        session.add(row)
        session.flush()
        wire_keys.tend(session, 3600)
        assert _rows(session) == [2]


def test_the_first_secret_of_engines_that_require_seals_is_used_at_once(control: Running) -> None:
    wire = {key: value for key, value in multicast().items() if key != "name"}
    for name, secure, state in (("one", "required", "active"), ("two", "optional", "waiting")):
        port = 7800 if name == "one" else 7900
        spec = {**wire, "secure": secure, "port": port, "platform": ""}
        assert control.api.put(f"/transports/{name}", json={"spec": spec}).status_code < 300
        assert control.api.post(f"/transports/{name}/keys/rotate").status_code == 200
        [shown] = control.api.get(f"/transports/{name}/keys").json()["epochs"]
        assert (shown["epoch"], shown["state"]) == (1, state)
    assert control.api.post("/transports/one/keys/rotate").status_code == 200
    states = [each["state"] for each in control.api.get("/transports/one/keys").json()["epochs"]]
    assert states == ["active", "waiting"]


def test_a_service_whose_clock_is_set_back_ends_no_epoch_in_use(service: Service, api: Any) -> None:
    assert api.post(f"/api/v1{KEYS}/rotate?at_once=true").status_code == 200
    with service.ctx.db.begin() as session:
        [row] = session.exec(select(WireEpochRow)).all()
        row.created_at = row.activate_at = utc_now() + timedelta(hours=2)
        session.add(row)
    assert api.post(f"/api/v1{KEYS}/rotate").status_code == 200
    with service.ctx.db.begin() as session:
        assert _rows(session) == [1, 2]


def test_an_engine_learns_the_services_time(engine: Engine, eventually: Eventually) -> None:
    node: Any = engine.node

    def known() -> int | None:
        return node.wire_keys.service_clock.now_ns(node.context.clock_ns())

    eventually(lambda: known() is not None, "the service's time")
    assert abs((known() or 0) - time.time_ns()) < 5_000_000_000


def test_an_engine_without_a_required_secret_waits_for_its_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "FIRST_S", 0.0)
    path = tmp_path / "topology.yaml"
    path.write_text(json.dumps({"transports": [multicast(secure="required")]}))
    topology, nowhere = load_topology(path), "http://127.0.0.1:9"
    problem = "transport multicast: secure: required: this engine has no secret of it yet"
    with pytest.raises(ConnectionLost, match=problem):
        fetch_topology(topology, tmp_path, path, nowhere, "tce_x", None)
    keep_wire_keys(
        tmp_path, {"multicast": [{"epoch": 1, "secret_hex": "ab" * 32, "activate_at_ns": 1}]}
    )
    assert fetch_topology(topology, tmp_path, path, nowhere, "tce_x", None) == topology


def _rows(session: Session) -> list[int]:
    return sorted(row.epoch for row in session.exec(select(WireEpochRow)).all())


@pytest.mark.parametrize(
    "raw",
    [
        {"multicast": [{"epoch": 0, "secret_hex": "ab" * 32, "activate_at_ns": 1}]},
        {"multicast": [{"epoch": 1, "secret_hex": "feedface", "activate_at_ns": 1}]},
        {"multicast": [{"epoch": 1, "activate_at_ns": 1}]},
        {"multicast": "feedface"},
    ],
)
def test_what_is_wrong_leaves_the_file_as_it_is(tmp_path: Path, raw: Any) -> None:
    good = {"multicast": [{"epoch": 1, "secret_hex": "ab" * 32, "activate_at_ns": 1}]}
    keep_wire_keys(tmp_path, good)
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(ConfigError) as raised:
        keep_wire_keys(tmp_path, raw)
    assert "feedface" not in str(raised.value)
    assert (tmp_path / FILE_NAME).read_bytes() == before
    keep_wire_keys(tmp_path, {"other": good["multicast"]})
    assert load_wire_keys(tmp_path / FILE_NAME).transports.keys() == {"multicast", "other"}
