"""The cluster's level: engines that do not read it are refused, and it is raised once all do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy.orm import Session

from tests.conftest import Eventually
from tests.control.test_identities import HELLO, is_down, linked, token, until
from tests.support.control import Service, running
from tests.support.lab import multicast, topology
from tidecast.api import levels
from tidecast.api.levels import Range
from tidecast.cli.cluster.cluster import cluster as commands
from tidecast.config.topology import load_topology, with_identity
from tidecast.control_link.link import ControlLink
from tidecast.engine.process import Engine, make_node
from tidecast.errors import ConfigError
from tidecast.layout.levels import LEVEL_MAX, LEVELS, LOWEST, NEWEST
from tidecast_control.kit.problems import ProblemError
from tidecast_control.nodes import levels as cluster_levels
from tidecast_control.nodes import repository
from tidecast_control.nodes import service as nodes
from tidecast_control.nodes.models import ClusterRow, NodeStateRow
from tidecast_control.settings import Settings

ENGINE = "ws://localhost/api/v1/engine"


def answer_to(service: Service, secret: str, **said: Any) -> Any:
    """The service's first answer to a hello; the link is closed again."""
    headers = {"Authorization": f"Bearer {secret}"}
    with service.admin.websocket_connect(ENGINE, headers=headers) as link:
        link.send_json(HELLO | said)
        answer = link.receive_json()
        link.close()
        assert is_down(service, HELLO["node"])  # before the client cancels what notes it
    return answer


def cluster(service: Service) -> Any:
    return service.admin.get("/api/v1/cluster").json()


@pytest.fixture
def raisable(service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    """The service is of the next build, its cluster at the level of this one."""
    monkeypatch.setitem(LEVELS, NEWEST + 1, LEVELS[NEWEST]._replace(since="9.9.9"))
    monkeypatch.setattr(levels, "OURS", Range(NEWEST, NEWEST + 1))
    return service


def finalize(service: Service, query: str = "") -> Any:
    return service.admin.post(f"/api/v1/cluster/finalize{query}")


def test_a_new_cluster_is_at_the_newest_level(service: Service) -> None:
    found = cluster(service)
    assert (found["level"], found["level_max"]) == (NEWEST, NEWEST)
    assert (found["engines"], found["blocked_by"]) == ([], [])
    plan = finalize(service).json()
    assert plan["action"] == "none"


def test_an_engine_of_before_is_let_in_and_holds_the_next_level_back(raisable: Service) -> None:
    answer = answer_to(raisable, token(raisable), version="0.1.0")
    assert answer["type"] == "welcome"
    found = cluster(raisable)
    [engine] = found["engines"]
    assert (engine["node"], engine["level_min"], engine["level_max"]) == ("n1", LOWEST, NEWEST)
    assert engine["blocks"]
    assert "install tidecast >= 9.9.9" in found["blocked_by"][0]
    for query in ("", "?dry_run=true"):
        refused = finalize(raisable, query)
        assert refused.status_code == 409
        assert "node n1 (0.1.0)" in refused.json()["detail"]
    assert cluster(raisable)["level"] == NEWEST
    raisable.admin.post("/api/v1/nodes/n1/revoke")
    assert finalize(raisable, "?dry_run=true").status_code == 200, "it cannot come back"


def test_the_level_is_raised_once_all_read_it_and_engines_write_it(raisable: Service) -> None:
    both = {"levels": [NEWEST, NEWEST + 1]}
    credential = answer_to(raisable, token(raisable), **both)["credential"]
    [change] = finalize(raisable, "?dry_run=true").json()["changes"]
    assert (change["old"], change["new"]) == (NEWEST, NEWEST + 1)
    assert cluster(raisable)["level"] == NEWEST, "a dry run raises nothing"
    headers = {"Authorization": f"Bearer {credential}"}
    with raisable.admin.websocket_connect(ENGINE, headers=headers) as link:
        link.send_json(HELLO | both)
        assert until(link, "topology")["level"] == NEWEST
        assert finalize(raisable).status_code == 200
        while until(link, "topology")["level"] != NEWEST + 1:
            pass
        link.close()
        assert is_down(raisable, "n1")
    found = cluster(raisable)
    assert (found["level"], found["finalized_by"]) == (NEWEST + 1, "admin")
    entries = raisable.admin.get("/api/v1/audit?kind=cluster").json()["items"]
    assert [each["action"] for each in entries] == ["finalize"]
    assert finalize(raisable, f"?level={NEWEST}").status_code == 409, "never lowered"
    assert finalize(raisable, f"?level={NEWEST + 7}").status_code == 422


def test_an_engine_below_the_level_is_refused_and_shown(raisable: Service) -> None:
    both = {"levels": [NEWEST, NEWEST + 1]}
    credential = answer_to(raisable, token(raisable), **both)["credential"]
    assert finalize(raisable).status_code == 200
    for _ in range(2):
        answer = answer_to(raisable, credential, version="0.1.0")  # it went back a version
        assert (answer["type"], answer["code"]) == ("refused", "conflict")
        assert f"the cluster is at level {NEWEST + 1}" in answer["detail"]
        assert "install tidecast >= 9.9.9" in answer["detail"]
    [engine] = cluster(raisable)["engines"]
    assert "install tidecast >= 9.9.9" in engine["refused"]
    node = raisable.admin.get("/api/v1/nodes/n1").json()
    assert "install tidecast >= 9.9.9" in node["status"]["errors"]["level"]
    entries = raisable.admin.get("/api/v1/audit?kind=node").json()["items"]
    assert [each["action"] for each in entries].count("refuse") == 1, "once for each reason"
    assert answer_to(raisable, credential, **both)["type"] == "welcome"
    assert cluster(raisable)["engines"][0]["refused"] == ""


@pytest.mark.parametrize(
    "said",
    [{"levels": [2, 1]}, {"levels": "x"}, {"levels": [0] * 9999}, {"protocol": 77, "levels": None}],
    ids=["reversed", "text", "many", "protocol"],
)
def test_levels_that_are_none_are_refused(service: Service, said: Any) -> None:
    secret = token(service)
    answer = answer_to(service, secret, **said)
    assert (answer["type"], answer["code"]) == ("refused", "conflict")
    assert next(iter(said)) in answer["detail"]
    assert len(answer["detail"]) < 500, "the refusal quotes the value in short"
    assert cluster(service)["engines"] == []
    with linked(service, secret) as (_, welcome):
        assert welcome["type"] == "welcome", "the token was not used up"


def test_a_refusal_of_a_node_that_has_not_registered_is_in_the_audit_once(
    service: Service,
) -> None:
    secret = token(service)
    for _ in range(3):
        assert answer_to(service, secret, protocol=77, levels=None)["type"] == "refused"
    service.ctx.denials.flush()
    entries = service.admin.get("/api/v1/audit?outcome=denied").json()["items"]
    [entry] = [each for each in entries if each["actor_kind"] == "engine"]
    assert (entry["actor"], entry["status"]) == ("n1", 409)
    assert "protocol: 77" in entry["detail"]


@pytest.mark.parametrize("level", [-1, 0, LEVEL_MAX + 1, 1 << 40])
def test_a_level_out_of_range_that_an_engine_reports_is_not_stored(
    service: Service, level: int
) -> None:
    assert answer_to(service, token(service))["type"] == "welcome"
    applied = {"version": 1, "errors": {}, "restart_needed": [], "level": level}
    with service.ctx.db.begin() as session:
        since = session.get_one(NodeStateRow, "n1").connected_at
    with pytest.raises(ProblemError, match="level"), service.ctx.db.begin() as session:
        nodes.report(session, "n1", since, applied)
    [engine] = cluster(service)["engines"]
    assert engine["level"] == 1


def test_a_real_engine_is_raised_from_the_shell_and_keeps_its_level(
    settings: Settings,
    template: Any,
    short_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    path = short_dir / "topology.yaml"
    path.write_text(json.dumps(topology(multicast()) | {"level": NEWEST}))

    def shell(*line: str) -> Any:
        done = CliRunner().invoke(commands, [*line, "--json", "--control", control.url])
        assert done.exit_code == 0, done.output
        return json.loads(done.output)

    def link(node: Any, store: Any) -> ControlLink:
        return ControlLink(node, store, control.url, token=control.enrol(), seed=1)

    with running(settings, template.login) as control:  # the cluster is at this build's level
        made = control.api.post("/keys", json={"name": "ops", "role": "admin"})
        monkeypatch.setenv("TIDECAST_KEY", made.json()["secret"])
        monkeypatch.setitem(LEVELS, NEWEST + 1, LEVELS[NEWEST]._replace(since="9.9.9"))
        monkeypatch.setattr(levels, "OURS", Range(NEWEST, NEWEST + 1))
        engine = Engine(
            short_dir,
            load_topology(path),
            topology_file=path,
            companions=(link,),
            node_factory=make_node,
        )
        engine.start()
        node: Any = engine.node
        try:
            eventually(lambda: [e["state"] for e in shell("status")["engines"]] == ["up"], "up")
            assert shell("upgrade")["dry_run"]
            assert node.topology.level == NEWEST
            assert shell("upgrade", "--finalize")["changes"][0]["new"] == NEWEST + 1
            eventually(lambda: node.topology.level == NEWEST + 1, "the engine is told")
            eventually(
                lambda: shell("status")["engines"][0]["level"] == NEWEST + 1, "the engine told it"
            )
            assert load_topology(path).level == NEWEST + 1
        finally:
            engine.stop()
    monkeypatch.setattr(levels, "OURS", Range(NEWEST, NEWEST))
    with pytest.raises(ConfigError, match="install a version that reads level"):
        make_node(with_identity(load_topology(path), short_dir), short_dir)


@pytest.fixture
def of_level_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster is at level 1 as the service starts: the build before began it."""

    def begun(session: Session) -> None:
        session.merge(ClusterRow(id=1, level=1))

    monkeypatch.setattr(cluster_levels, "ensure", begun)


@pytest.mark.parametrize(
    "said", [{"levels": [1, 1]}, {"levels": None}], ids=["one level", "a bare number"]
)
def test_an_engine_of_level_1_is_refused_at_level_2(service: Service, said: Any) -> None:
    answer = answer_to(service, token(service), version="0.1.0", **said)
    assert (answer["type"], answer["code"]) == ("refused", "conflict")
    assert "engine 0.1.0 reads level 1, the cluster is at level 2" in answer["detail"]
    assert "install tidecast >= 0.2.0" in answer["detail"]
    assert cluster(service)["engines"] == []


def test_an_engine_of_level_2_writes_level_1_until_the_cluster_is_raised(
    settings: Settings,
    template: Any,
    short_dir: Path,
    of_level_1: None,
    eventually: Eventually,
) -> None:
    path = short_dir / "topology.yaml"
    path.write_text(json.dumps(topology(multicast())))

    def link(node: Any, store: Any) -> ControlLink:
        return ControlLink(node, store, control.url, token=control.enrol(), seed=1)

    def row() -> Any:
        [engine] = control.api.get("/cluster").json()["engines"] or [{"state": ""}]
        return engine

    with running(settings, template.login) as control:
        assert control.api.get("/cluster").json()["level"] == 1
        engine = Engine(
            short_dir,
            load_topology(path),
            topology_file=path,
            companions=(link,),
            node_factory=make_node,
        )
        engine.start()
        node: Any = engine.node
        try:
            eventually(lambda: row()["state"] == "up", "up")
            assert (row()["level_min"], row()["level_max"], row()["level"]) == (1, 2, 1)
            assert node.topology.level == 1
            assert control.api.post("/cluster/finalize").status_code == 200
            eventually(lambda: node.topology.level == 2, "the engine is told")
            eventually(lambda: row()["level"] == 2, "the engine told it")
        finally:
            engine.stop()


def test_lanes_that_an_engine_of_before_ignores_are_an_error_at_its_transport(
    service: Service, eventually: Eventually
) -> None:
    """It reports the transport as in effect, because it ignores settings that it does not know."""
    with service.ctx.db.begin() as session:
        row = session.get(ClusterRow, 1)
        assert row is not None
        row.level = LOWEST
    transport, node = "multicast", str(HELLO["node"])
    path = f"/api/v1/transports/{transport}"

    def applied_version() -> int:
        with service.ctx.db.begin() as session:
            return repository.states(session)[node].applied_version

    def status(lanes: int, **said: Any) -> Any:
        """Of the transport, once an engine reports that it runs it."""
        changed = service.admin.patch(path, json={"spec": {"lanes": lanes}})
        assert changed.status_code == 200, changed.text
        secret = token(service, f"e{lanes}.{len(said)}", node=node, replace=True)
        headers = {"Authorization": f"Bearer {secret}"}
        with service.admin.websocket_connect(ENGINE, headers=headers) as link:
            link.send_json(HELLO | said)
            message = until(link, "topology")
            assert message["transports"][transport]["lanes"] == lanes
            report = {"version": message["version"], "observed": message["generations"]}
            rest: dict[str, Any] = {"errors": {}, "restart_needed": [], "differs": {}}
            link.send_json({"type": "applied", **report, **rest})
            eventually(lambda: applied_version() == message["version"], "applied")
            found = service.admin.get(path).json()["status"]
            link.close()
            assert is_down(service, node)
        return found

    old = {"version": "0.1.0", "levels": None}
    assert status(1, **old)["drift"] is False
    found = status(3, **old)
    [error] = [each for each in found["conditions"] if each["type"] == "Error"]
    assert error["node"] == node
    assert error["message"] == (
        "lanes: 3: engine 0.1.0 does not know it and runs one lane: install tidecast >= 0.2.0 on "
        "this node"
    )
    assert found["drift"] is True
    assert status(3)["drift"] is False
