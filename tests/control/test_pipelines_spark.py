"""Pipelines that really start Spark, from the service: archive, rollup, report; schedule, stop."""

from __future__ import annotations

import importlib.util
import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text, update

from tests.conftest import Eventually
from tests.support.control import Service
from tests.support.spark_logs import Record, append, records
from tidecast_control.kit.models import ResourceRow, utc_now
from tidecast_control.pipelines.jobs import TELEMETRY_TOPIC
from tidecast_control.settings import Settings

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="an extra"),
]
RUN_S = 300.0


def _ended(service: Service, eventually: Eventually, name: str, count: int) -> Any:
    """The ``count``-th run, when it has ended."""
    runs: list[Any] = []

    def over() -> bool:
        service.ctx.runner.wake()
        runs[:] = service.admin.get(f"/api/v1/pipelines/{name}/runs").json()["items"]
        return len(runs) == count and runs[0]["finished_at"] is not None

    eventually(over, f"run {count} of {name}", timeout_s=RUN_S)
    return runs[0]


def _group(pid: int) -> list[Path]:
    """Processes of a group that are alive."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(group) == pid and state != "Z":
            found.append(stat)
    return found


def test_an_archive_by_hand_by_its_schedule_and_stopped(
    service: Service, settings: Settings, eventually: Eventually
) -> None:
    api, data_dir = service.admin, settings.data_dir
    append(data_dir, "orders", 0, records(1000))
    spec = {"job": "archive", "topic": "orders", "schedule": "every 1h"}
    api.put("/api/v1/pipelines/keep", json={"spec": spec})
    assert api.post("/api/v1/pipelines/keep/start").status_code == 201
    run = _ended(service, eventually, "keep", 1)
    assert (run["state"], run["rows"], run["errors"], run["error"]) == ("done", "1000", "0", "")
    assert run["duration_s"] > 0
    assert list((data_dir / "pipelines" / "archive").rglob("*.parquet"))

    append(data_dir, "orders", 0, records(500, 1000))
    status = api.patch("/api/v1/pipelines/keep", json={"spec": {"enabled": True}}).json()["status"]
    assert status["next_run_at"].endswith(":00:00Z")
    assert status["last_run"]["id"] == run["id"]
    with service.ctx.db.begin() as session:
        session.execute(
            update(ResourceRow)
            .values(updated_at=utc_now() - timedelta(hours=2))
            .where(ResourceRow.name == "keep")  # type: ignore[arg-type]
        )
        session.execute(text("UPDATE pipeline_runs SET queued_at = queued_at - interval '2 hours'"))
    run = _ended(service, eventually, "keep", 2)
    assert (run["trigger"], run["state"], run["rows"]) == ("schedule", "done", "500")
    api.patch("/api/v1/pipelines/keep", json={"spec": {"enabled": False}})

    api.post("/api/v1/pipelines/keep/start")
    eventually(lambda: service.ctx.runner._active, "the process", timeout_s=60.0)
    [active] = service.ctx.runner._active.values()
    group = active.process.pid
    eventually(lambda: len(_group(group)) > 2, "the JVM", timeout_s=60.0)
    assert api.post("/api/v1/pipelines/keep/stop").status_code == 200
    run = _ended(service, eventually, "keep", 3)
    assert (run["state"], run["error"]) == ("stopped", "stopped by admin")
    eventually(lambda: not _group(group), "the end of all its processes")


def test_a_job_that_fails_says_why(service: Service, eventually: Eventually) -> None:
    api = service.admin
    api.put("/api/v1/pipelines/bad", json={"spec": {"job": "archive", "topic": "nope"}})
    api.post("/api/v1/pipelines/bad/start")
    run = _ended(service, eventually, "bad", 1)
    assert (run["state"], run["errors"], run["exit_code"]) == ("failed", "1", 1)
    assert run["error"].startswith("option topic: 'nope': no durable topic in ")


def test_rollups_reach_postgres_and_the_report_gives_advice(
    service: Service, settings: Settings, eventually: Eventually
) -> None:
    api, data_dir = service.admin, settings.data_dir
    begun_us = time.time_ns() // 1000 - 3 * 3600 * 1_000_000
    samples = [
        {
            "time_us": begun_us + i * 10_000_000,
            "node": "n1",
            "topic": "orders",
            "interval_ms": 10_000,
            "messages_in": 100,
            "bytes_in": 50_000,
            "packets": 10,
            "resent": 1,
        }
        for i in range(720)
    ]
    append(data_dir, TELEMETRY_TOPIC, 0, [Record(json.dumps(s).encode()) for s in samples])
    append(data_dir, TELEMETRY_TOPIC, 0, [Record(b"no JSON")])
    api.put("/api/v1/pipelines/roll", json={"spec": {"job": "rollup"}})
    api.post("/api/v1/pipelines/roll/start")
    run = _ended(service, eventually, "roll", 1)
    assert (run["state"], run["rows"], run["errors"]) == ("done", "721", "1"), run
    with service.ctx.db.begin() as session:
        hours = session.execute(text("SELECT sum(messages_in), sum(resent) FROM rollup_hour")).one()
    assert tuple(map(int, hours)) == (72_000, 720)
    api.put("/api/v1/topics/orders", json={"spec": {}})
    api.put("/api/v1/pipelines/advise", json={"spec": {"job": "capacity", "hours": 8784}})
    api.post("/api/v1/pipelines/advise/start")
    run = _ended(service, eventually, "advise", 1)
    assert run["state"] == "done", run
    [advice] = api.get("/api/v1/capacity").json()["items"]
    assert advice["topic"] == "orders"
    plan = api.post("/api/v1/capacity/orders/apply?dry_run=true").json()
    assert plan["changes"]
