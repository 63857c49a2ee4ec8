"""Mirrors of the service with Kafka itself, an engine, and processes that are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Eventually
from tests.support.control import Service, service_of
from tests.support.kafka_brokers import Brokers, brokers, missing
from tests.system.test_mirror import Engine
from tests.system.test_mirror_to_kafka import on_kafka, publish, values
from tidecast_control.settings import Settings, load_settings

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=missing() or "brokers"),
]
RECORDS, KILLS, WAIT_S = 3_000, 3, 240
LOGIN = {"user": "shop", "secret": "shop secret", "mechanism": "PLAIN"}


@pytest.fixture(scope="module")
def kafka() -> Iterator[Brokers]:
    with brokers() as made:
        yield made


@pytest.fixture
def engine(short_dir: Path) -> Iterator[Engine]:
    made = Engine(short_dir)
    yield made
    made.kill()


@pytest.fixture
def beside(database_url: str, engine: Engine) -> Settings:
    """A service on the engine's data directory."""
    return load_settings(
        database_url=database_url, data_dir=engine.directory, alert_interval_s=300, port=0
    )


def _status(service: Service, name: str) -> Any:
    return service.admin.get(f"/api/v1/mirrors/{name}").json()["status"]


def _copy(service: Service, name: str) -> dict[str, Any]:
    """The figures of a mirror, without a request."""
    copy = service.ctx.mirrors.copies.get(name)
    return {"records": -1, "failures": -1, "queues": []} if copy is None else copy.figures


def _kill(service: Service, name: str, eventually: Eventually, more: Callable[[], None]) -> None:
    """End the process of a mirror once it copies ``more``, and let the next one begin."""
    before = _status(service, name)
    records, failures = int(before["records"]), int(before["failures"])
    more()
    eventually(lambda: _copy(service, name)["records"] > records, "it copies", timeout_s=WAIT_S)
    process = service.ctx.mirrors.copies[name].process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: _copy(service, name)["failures"] > failures, "its end", timeout_s=WAIT_S)
    service.admin.post(f"/api/v1/mirrors/{name}/resume")  # no wait after the failure


def test_each_record_is_copied_once_whatever_is_killed(
    beside: Settings, template: Any, engine: Engine, kafka: Brokers, eventually: Eventually
) -> None:
    engine.create("orders", 2)
    kafka.create("orders", 2)
    sent: dict[int, list[bytes]] = {0: [], 1: []}

    def more() -> None:
        for partition, records in sent.items():
            fresh = [b"%d-%d" % (partition, len(records) + i) for i in range(RECORDS // 2)]
            kafka.fill("orders", fresh, partition=partition)
            records.extend(fresh)

    spec = {"topic": "orders", "servers": kafka.sasl, "kafka_topic": "orders", **LOGIN}
    with service_of(beside) as service:
        template.login.put_on(service.admin)
        wrong = spec | {"secret": "no such secret"}
        service.admin.put("/api/v1/mirrors/in", json={"spec": wrong})
        eventually(
            lambda: _status(service, "in")["state"] == "waiting", "refused", timeout_s=WAIT_S
        )
        made = service.admin.put("/api/v1/mirrors/in", json={"spec": spec | {"rate": 300}})
        assert made.status_code == 200, made.text
        for _ in range(KILLS):
            _kill(service, "in", eventually, more)
        engine.kill()
        engine.start()
    with service_of(beside) as service:  # another service: the mirror is kept
        template.login.put_on(service.admin)
        service.admin.patch("/api/v1/mirrors/in", json={"spec": {"rate": 0}})
        eventually(
            lambda: (
                [each["durable"] for each in _copy(service, "in")["queues"]]
                == [len(sent[0]), len(sent[1])]
            ),
            "all is copied and durable",
            timeout_s=WAIT_S,
        )
        eventually(lambda: _status(service, "in")["lag"] == "0", "it is kept", timeout_s=WAIT_S)
        found = _status(service, "in")
        assert (found["gone"], found["error"]) == ("0", "")
        assert service.admin.get("/api/v1/mirrors/in/progress").json()["rate"]
    assert engine.values("orders") == sent


def test_to_kafka_each_record_is_copied_once_whatever_is_killed(
    beside: Settings, template: Any, engine: Engine, kafka: Brokers, eventually: Eventually
) -> None:
    engine.create("out", 2)
    sent = 0

    def more() -> None:
        nonlocal sent
        publish(engine, "out", sent, RECORDS)
        sent += RECORDS

    spec = {
        "direction": "to_kafka",
        "topic": "out",
        "servers": kafka.address,
        "kafka_topic": "out",
        "rate": 300,
    }
    with service_of(beside) as service:
        template.login.put_on(service.admin)
        assert service.admin.put("/api/v1/mirrors/out", json={"spec": spec}).status_code == 201
        for _ in range(KILLS):
            _kill(service, "out", eventually, more)
        service.admin.patch("/api/v1/mirrors/out", json={"spec": {"rate": 0}})
        eventually(
            lambda: sum(each["position"] for each in _copy(service, "out")["queues"]) == sent,
            "all is copied",
            timeout_s=WAIT_S,
        )
    found = on_kafka(kafka, "out", 2)
    assert values(found) == engine.values("out")
    assert sum(map(len, found.values())) == sent
