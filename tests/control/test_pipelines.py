"""Pipelines: schedules, runs as real processes, their ends; capacity advice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text, update
from starlette.testclient import TestClient

from tests.conftest import Eventually
from tests.support.control import Service, service_of
from tests.support.patience import Patience
from tidecast_control.kit.models import ResourceRow, utc_now
from tidecast_control.mirrors import copying
from tidecast_control.pipelines.jobs import Command, Place, command_of, words_of
from tidecast_control.pipelines.models import PipelineRunRow
from tidecast_control.pipelines.runner import LOG_BYTES_MAX, start_of
from tidecast_control.pipelines.schemas import PipelineSpec
from tidecast_control.settings import Settings

ARCHIVE = {"spec": {"job": "archive", "topic": "orders"}}


@pytest.fixture
def script(service: Service, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have the runner start a Python text instead of Spark."""

    def use(text: str) -> None:
        def command(spec: Mapping[str, Any], place: Place) -> Command:
            words = command_of(spec, place).words
            return Command((sys.executable, "-c", text, *words[3:]), os.environ)

        monkeypatch.setattr(service.ctx.runner, "_command", command)

    return use


def _last(api: TestClient, *states: str, name: str = "p") -> Any:
    patience = Patience(20)
    while True:
        run = api.get(f"/api/v1/pipelines/{name}").json()["status"]["last_run"]
        if run is not None and run["state"] in states:
            return run
        assert not patience.over(), run
        service_turn = api.get("/health/live")
        assert service_turn.status_code == 200


def _make(api: TestClient, **spec: Any) -> None:
    body = {"spec": ARCHIVE["spec"] | spec}
    assert api.put("/api/v1/pipelines/p", json=body).status_code in (200, 201)


def test_a_plan_warns_of_a_topic_without_which_runs_fail(service: Service) -> None:
    api = service.admin

    def warnings(**spec: Any) -> Any:
        return api.put("/api/v1/pipelines/p?dry_run=true", json={"spec": spec}).json()["warnings"]

    replay = {"job": "replay", "topic": "orders", "source": "old"}
    ends = "'orders': runs fail, unless an engine here has one"
    assert warnings(**ARCHIVE["spec"]) == [f"the service has no topic {ends}"]
    assert warnings(**replay) == [f"the service has no topic {ends}"]
    api.put("/api/v1/topics/orders", json={"spec": {"mode": "live"}})
    live = f"the service has a live topic, and no durable topic, {ends}"
    assert warnings(**ARCHIVE["spec"]) == [live]
    api.delete("/api/v1/topics/orders")
    api.put("/api/v1/topics/orders", json={"spec": {"mode": "durable"}})
    assert warnings(**ARCHIVE["spec"]) == []
    assert warnings(job="archive", topic="o.>") == warnings(job="capacity") == []


def test_a_run_is_started_noted_and_its_log_kept(service: Service, script: Any) -> None:
    api = service.admin
    script(
        "import json, sys; "
        "print(json.dumps({'errors': 2, 'report': {'rows': 7, 'words': sys.argv[1:]}}))\n"
        f"sys.stderr.write('x' * {LOG_BYTES_MAX} + 'the end\\n')"
    )
    _make(api)
    started = api.post("/api/v1/pipelines/p/start")
    assert (started.status_code, started.json()["state"]) == (201, "queued")
    run = _last(api, "done")
    assert (run["rows"], run["errors"]) == ("7", "2")
    assert (run["error"], run["trigger"]) == ("", "user")
    assert run["report"]["words"][:4] == ["pipeline", "archive", "--topic", "orders"]
    assert run["cli"].startswith("tidecast pipeline archive --topic orders --out ")
    log = api.get(f"/api/v1/pipelines/p/runs/{run['id']}/log").json()
    assert log["text"].endswith("the end\n")
    assert len(log["text"]) == LOG_BYTES_MAX < int(log["bytes"])
    assert [r["id"] for r in api.get("/api/v1/pipelines/p/runs").json()["items"]] == [run["id"]]
    actions = [e["action"] for e in api.get("/api/v1/audit?kind=pipeline&name=p").json()["items"]]
    assert actions == ["start", "create"]


def test_a_failure_says_why(service: Service, script: Any) -> None:
    script("import sys; sys.stderr.write('noise\\nError: no such topic\\n'); sys.exit(3)")
    _make(service.admin)
    service.admin.post("/api/v1/pipelines/p/start")
    run = _last(service.admin, "failed")
    assert (run["error"], run["exit_code"], run["rows"]) == ("no such topic", 3, None)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_stop_ends_the_group_and_others_wait_for_room(
    service: Service, script: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = service.admin
    monkeypatch.setattr(service.ctx.runner, "_runs_max", 1)
    script(
        "import subprocess, sys; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "sys.stderr.write(f'{child.pid}\\n'); sys.stderr.flush(); child.wait()"
    )
    _make(api)
    api.put("/api/v1/pipelines/q", json=ARCHIVE)
    assert api.post("/api/v1/pipelines/p/stop").status_code == 409
    api.post("/api/v1/pipelines/p/start")
    run = _last(api, "running")
    assert api.post("/api/v1/pipelines/p/start").json()["code"] == "conflict"
    assert api.delete("/api/v1/pipelines/p").json()["code"] == "in_use"
    api.post("/api/v1/pipelines/q/start")
    log = ""
    while not log.endswith("\n"):
        log = api.get(f"/api/v1/pipelines/p/runs/{run['id']}/log").json()["text"]
    assert _last(api, "queued", name="q")["state"] == "queued"
    assert api.post("/api/v1/pipelines/q/stop").json()["state"] == "stopped"
    api.post("/api/v1/pipelines/p/stop")
    ended = _last(api, "stopped")
    assert ended["error"] == "stopped by admin"
    eventually(lambda: not _alive(int(log)), "the child's end")


def test_two_pipelines_run_at_once(service: Service, script: Any, tmp_path: Path) -> None:
    """Each ends once the other one has begun."""
    api = service.admin
    script(
        "import pathlib, sys, time\n"
        f"place = pathlib.Path({str(tmp_path)!r})\n"
        "out = pathlib.Path(sys.argv[sys.argv.index('--out') + 1])\n"
        "(place / out.name).touch()\n"
        "while len(list(place.iterdir())) < 2: time.sleep(0.02)"
    )
    for name in "pq":
        body = {"spec": ARCHIVE["spec"] | {"archive": name}}
        api.put(f"/api/v1/pipelines/{name}", json=body)
        api.post(f"/api/v1/pipelines/{name}/start")
    for name in "pq":
        assert _last(api, "done", name=name)["error"] == ""


def test_another_service_ends_a_run_by_its_row(
    service: Service, script: Any, eventually: Eventually
) -> None:
    api = service.admin
    script("import time; time.sleep(600)")
    _make(api)
    for change, state, error in (
        ("ending = true, error = 'stopped by eve'", "stopped", "stopped by eve"),
        ("state = 'lost', error = 'its lease ended'", "lost", "its lease ended"),
    ):
        api.post("/api/v1/pipelines/p/start")
        run = _last(api, "running")
        eventually(lambda run=run: run["id"] in service.ctx.runner._active, "the process")
        process = service.ctx.runner._active[run["id"]].process
        with service.ctx.db.begin() as session:
            session.execute(text(f"UPDATE pipeline_runs SET {change} WHERE id = '{run['id']}'"))
        service.ctx.runner.wake()
        eventually(lambda process=process: not _alive(process.pid), "the process's end")
        assert _last(api, state)["error"] == error
        eventually(lambda: not service.ctx.runner._active, "the run's end")
        assert _last(api, state)["error"] == error, "its own end changes nothing"


def test_the_time_is_bounded(service: Service, script: Any) -> None:
    script("import time; time.sleep(600)")
    _make(service.admin, timeout_s=0.05)
    service.admin.post("/api/v1/pipelines/p/start")
    run = _last(service.admin, "failed")
    assert run["error"] == "it took longer than 0.05 s"


def test_schedules(service: Service, script: Any) -> None:
    api = service.admin
    script("print('{}')")
    body = {"spec": {"job": "rollup", "schedule": "every 1h", "enabled": True}}
    status = api.put("/api/v1/pipelines/p", json=body).json()["status"]
    assert status["next_run_at"].endswith(":00:00Z")
    assert status["last_run"] is None
    with service.ctx.db.begin() as session:
        session.execute(
            update(ResourceRow)
            .values(updated_at=utc_now() - timedelta(hours=2))
            .where(ResourceRow.name == "p")  # type: ignore[arg-type]
        )
    service.ctx.runner.wake()
    assert _last(api, "done")["trigger"] == "schedule"
    api.patch("/api/v1/pipelines/p", json={"spec": {"enabled": False}})
    assert api.get("/api/v1/pipelines/p").json()["status"]["next_run_at"] is None
    for spec in (
        {"job": "rollup", "schedule": "often"},
        {"job": "rollup", "enabled": True},
        {"job": "replay", "topic": "a"},
        {"job": "archive"},
        {"job": "archive", "topic": "a", "archive": "../up"},
    ):
        assert api.put("/api/v1/pipelines/z", json={"spec": spec}).status_code == 422, spec


def test_a_run_of_a_service_that_lives_is_left_alone(settings: Settings, template: Any) -> None:
    """A second service on the database, or its restart, took the runs of the first for lost."""
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    try:
        with service_of(settings) as service, service.ctx.db.begin() as session:
            session.add(
                PipelineRunRow(
                    id="1",
                    pipeline="p",
                    job="rollup",
                    trigger="user",
                    state="running",
                    pid=other.pid,
                    pid_start=start_of(other.pid),
                    held_until=utc_now() + timedelta(minutes=5),
                )
            )
        with service_of(settings) as service:
            template.login.put_on(service.admin)
            service.admin.put("/api/v1/pipelines/p", json=ARCHIVE)
            turns = service.ctx.supervisor.tasks["pipelines"].turns
            while service.ctx.supervisor.tasks["pipelines"].turns < turns + 2:
                service.ctx.runner.wake()
                service.admin.get("/api/v1/health/live")
            assert _last(service.admin, "running", "lost")["state"] == "running"
            assert other.poll() is None
            with service.ctx.db.begin() as session:
                session.execute(text("UPDATE pipeline_runs SET held_until = now()"))
            service.ctx.runner.wake()
            assert _last(service.admin, "lost")["error"] == "the service ended while it ran"
            assert other.wait(10) == -signal.SIGKILL
    finally:
        other.kill()
        other.wait()


def test_a_run_of_a_killed_service_is_lost_and_ended(settings: Settings, template: Any) -> None:
    orphan = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    with service_of(settings) as service, service.ctx.db.begin() as session:
        session.add(
            PipelineRunRow(
                id="1",
                pipeline="p",
                job="rollup",
                trigger="user",
                state="running",
                pid=orphan.pid,
                pid_start=start_of(orphan.pid),
            )
        )
        session.add(
            PipelineRunRow(
                id="2",
                pipeline="q",
                job="rollup",
                trigger="user",
                state="running",
                pid=os.getpid(),
                pid_start=1,
            )
        )
    with service_of(settings) as service:
        template.login.put_on(service.admin)
        service.admin.put("/api/v1/pipelines/p", json=ARCHIVE)
        run = _last(service.admin, "lost")
        assert run["error"] == "the service ended while it ran"
        assert orphan.wait(10) == -signal.SIGKILL


def test_capacity_advice_is_read_previewed_and_applied(service: Service, script: Any) -> None:
    api = service.admin
    assert "capacity" in api.get("/api/v1/capacity").json()["mend"]
    advice = {
        "topic": "orders",
        "spec": {"rate_bytes_per_s": 5000, "history_bytes": 8 << 20},
        "reasons": ["why"],
        "peak_messages_per_s": 1.5,
        "peak_bytes_per_s": 100.0,
    }
    told = json.dumps({"report": {"rows": 60, "advice": [advice]}})
    script(f"print('''{told}''')")
    api.put("/api/v1/pipelines/p", json={"spec": {"job": "capacity"}})
    api.post("/api/v1/pipelines/p/start")
    assert _last(api, "done")["rows"] == "60"
    [item] = api.get("/api/v1/capacity").json()["items"]
    assert item["reasons"] == ["why"]
    assert api.post("/api/v1/capacity/orders/apply").status_code == 404
    api.put("/api/v1/topics/orders", json={"spec": {}})
    plan = api.post("/api/v1/capacity/orders/apply?dry_run=true").json()
    assert {c["path"]: c["new"] for c in plan["changes"]} == {
        "/spec/rate_bytes_per_s": 5000,
        "/spec/history_bytes": 8 << 20,
    }
    assert api.get("/api/v1/topics/orders").json()["spec"]["rate_bytes_per_s"] is None
    done = api.post("/api/v1/capacity/orders/apply").json()
    assert done["spec"]["history_bytes"] == 8 << 20


def test_what_a_key_may_start(service: Service) -> None:
    service.admin.put(
        "/api/v1/pipelines/p", json={"spec": {"job": "replay", "topic": "orders", "source": "old"}}
    )
    scope = {"pattern": "orders", "rights": ["manage"]}
    key = service.key("k", role="operator", scopes=[scope])
    refused = key.post("/api/v1/pipelines/p/start")
    assert (refused.status_code, refused.json()["code"]) == (403, "denied")
    assert "`publish` on orders" in refused.json()["detail"]


def test_words_of_jobs(tmp_path: Path) -> None:
    place = Place(tmp_path, "postgresql://u:secret@h/d", "local[1]")
    spec = PipelineSpec(job="archive", topic="md.*").model_dump(mode="json")
    assert words_of(spec, place)[2:4] == ["--pattern", "md.*"]
    rollup = PipelineSpec(job="rollup").model_dump(mode="json")
    command = command_of(rollup, place)
    assert "secret" not in " ".join(command.words)
    assert command.environment["TIDECAST_DATABASE_URL"] == place.database_url
    assert "TIDECAST_DATABASE_URL" not in command_of(spec, place).environment
    for job in ("archive", "replay", "rollup", "backfill", "capacity"):
        words = words_of(rollup | {"job": job, "topic": "a", "source": "b"}, place)
        run = subprocess.run(
            [sys.executable, "-m", "tidecast.cli", *words[:2], "--help"],
            check=True,
            capture_output=True,
            text=True,
        )
        assert all(word in run.stdout for word in words if word.startswith("--")), words


def test_jobs_import_nothing_from_the_folder_that_they_begin_in(tmp_path: Path) -> None:
    """Pipelines begin in the folder of archives, mirrors in that of the service."""
    (tmp_path / "json.py").write_text("print('imported')")
    (tmp_path / "tidecast.py").write_text("print('imported')")
    place = Place(tmp_path, "postgresql://u:secret@h/d", "local[1]")
    pipeline = command_of(PipelineSpec(job="rollup").model_dump(mode="json"), place)
    workers = [sys.executable, "-c", "import json"]  # as those that Spark starts
    for words, environment, problem in (
        ((*pipeline.words[:3], "--version"), pipeline.environment, 0),
        (workers, pipeline.environment, 0),
        (copying.COMMAND, os.environ, 1),
    ):
        run = subprocess.run(
            words,
            env=dict(environment),
            cwd=tmp_path,
            input="",
            capture_output=True,
            text=True,
            check=False,
        )
        assert "imported" not in run.stdout
        assert run.returncode == problem, run.stderr


@pytest.mark.parametrize("report", ['{"rows": 1180591620717411303424}', '"\\\\u0000"'])
def test_a_result_that_cannot_be_stored_ends_the_run_as_failed(
    service: Service, script: Any, report: str
) -> None:
    """It was tried again for ever: the pipeline ran no more."""
    script(f"print('{{\"report\": {report}}}')")
    _make(service.admin)
    assert service.admin.post("/api/v1/pipelines/p/start").status_code == 201
    run = _last(service.admin, "failed", "done")
    assert (run["state"], run["rows"]) in (("failed", None), ("done", None)), run
    assert service.admin.post("/api/v1/pipelines/p/start").status_code == 201


def test_a_pipeline_that_cannot_be_read_ends_no_run(service: Service, script: Any) -> None:
    """A row of another release, which lacks a field."""
    api = service.admin
    script("import sys; sys.stdin.close(); import time; time.sleep(600)")
    _make(api)
    api.post("/api/v1/pipelines/p/start")
    run = _last(api, "running")
    with service.ctx.db.begin() as session:
        spec = PipelineSpec(job="capacity", enabled=True, schedule="every 1m").model_dump()
        del spec["hours"]
        old = utc_now() - timedelta(hours=1)
        session.add(ResourceRow(uid="u", kind="pipeline", name="q", spec=spec, updated_at=old))
    rows, problems = service.ctx.runner._take()
    assert (rows, len(problems)) == ([], 1)
    assert "pipeline q" in str(problems[0])
    assert _last(api, "running")["id"] == run["id"]
