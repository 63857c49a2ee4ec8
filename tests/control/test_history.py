"""History: what rollups say, with real tables; the tables are those that the job writes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert
from starlette.testclient import TestClient

from tests.support.control import Service
from tidecast_control.history.models import KEY, ROLLUP_APPLIED, ROLLUP_HOUR, ROLLUP_MINUTE
from tidecast_spark.jobs.rollup_store import COLUMNS

START = datetime(2026, 1, 2, 10, 0, tzinfo=UTC)


def _rows(**row: Any) -> dict[str, Any]:
    return {"node": "n1", "topic": "orders", "queue": -1, "subscription": ""} | row


def _fill(service: Service) -> None:
    minutes = [START + timedelta(minutes=i) for i in range(10)]
    with service.ctx.db.begin() as session:
        for i, at in enumerate(minutes):
            rows = [
                _rows(at=at, messages_in=60 * i, in_per_s=float(i), bytes_in=600 * i),
                _rows(at=at, messages_in=60, in_per_s=1.0, bytes_in=60, node="n2"),
                _rows(at=at, topic="kept", resent=1, packets=8, messages_in=0),
                _rows(at=at, topic="kept", queue=0, messages_in=4, cache_fill=0.5),
                _rows(at=at, topic="kept", queue=1, messages_in=3, cache_fill=0.7),
                _rows(at=at, topic="kept", queue=0, subscription="s", lag_max=6, messages_out=2),
                _rows(at=at, topic="kept", queue=1, subscription="s", lag_max=1, messages_out=2),
                _rows(at=at, queue=0, subscription="billing", lag_p95=i, lag_ms_max=1500),
                _rows(at=at, queue=1, subscription="billing", lag_p95=10, lag_ms_max=500),
            ]
            for row in rows:
                session.execute(insert(ROLLUP_MINUTE).values(row))
        session.execute(insert(ROLLUP_HOUR).values(_rows(at=START, messages_in=77)))
        session.execute(insert(ROLLUP_APPLIED).values(query="q", batch=1))


def _ask(api: TestClient, scope: str, name: str, metric: Any, **query: Any) -> Any:
    span = {"from": "2026-01-02T10:00:00Z", "to": "2026-01-02T10:10:00Z"}
    asked = span | {"scope": scope, "name": name, "metric": metric} | query
    answer = api.get("/api/v1/history", params=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_tables_are_those_that_the_job_writes() -> None:
    for table in (ROLLUP_MINUTE, ROLLUP_HOUR):
        assert {c.name for c in table.columns} == {"at", *COLUMNS}
        assert [c.name for c in table.primary_key.columns] == list(KEY)


def test_empty_history_says_why(api: TestClient) -> None:
    found = _ask(api, "topic", "orders", "in_per_s")
    assert found["empty"]["code"] == "no_rollup"
    assert "rollup" in found["empty"]["mend"]
    assert found["series"][0]["values"] == [None] * 10


def test_series_by_scope(service: Service) -> None:
    _fill(service)
    api = service.admin
    found = _ask(api, "topic", "orders", "in_per_s", step=60)
    assert found["series"][0]["values"] == [1.0 + i for i in range(10)]
    assert found["at_s"][:2] == [int(START.timestamp()), int(START.timestamp()) + 60]
    assert found["empty"] is None
    coarse = _ask(api, "topic", "orders", "messages_in", step=300)
    assert coarse["series"][0]["values"] == [60 * 10 + 300, 60 * 35 + 300]
    queue = _ask(api, "queue", "kept:0", ["lag_max", "messages_in", "messages_out"])["series"]
    assert [s["values"][0] for s in queue] == [6.0, 4.0, 2.0]
    assert queue[0]["unit"] == "messages"
    lag = _ask(api, "subscription", "billing", "lag_p95")["series"][0]["values"]
    assert lag == [10.0 + i for i in range(10)]
    seconds = _ask(api, "subscription", "billing", "lag_s_max")["series"][0]["values"]
    assert seconds == [1.5] * 10
    node = _ask(api, "node", "n2", "bytes_in_per_s")["series"][0]["values"]
    assert node == [1.0] * 10
    wanted = ["messages_in", "messages_out", "retransmit_ratio", "lag_max", "cache_fill"]
    whole = _ask(api, "topic", "kept", wanted)["series"]
    assert [s["values"][0] for s in whole] == [7.0, 4.0, 0.125, 7.0, 0.6]
    hours = _ask(api, "topic", "orders", "messages_in", step=3600)
    assert (hours["source"], hours["series"][0]["values"]) == ("hour", [77.0])


def test_nothing_measured_is_told_apart(service: Service) -> None:
    _fill(service)
    found = _ask(service.admin, "topic", "other", "in_per_s")
    assert found["empty"]["code"] == "nothing_measured"
    assert "2026-01-02 10:09" in found["empty"]["detail"]


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({"step": 61}, "query/step"),
        ({"step": 60, "from": "2025-01-01T00:00:00Z"}, "query/step"),
        ({"from": "2026-01-03T00:00:00Z"}, "query/from"),
        ({"scope": "queue"}, "query/name"),
        ({"metric": "at; drop table users"}, "query/metric"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    api: TestClient, query: dict[str, Any], pointer: str
) -> None:
    asked = {"scope": "topic", "name": "orders", "metric": "in_per_s", "to": "2026-01-02T11:00:00Z"}
    answer = api.get("/api/v1/history", params=asked | query)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"].startswith(pointer)
