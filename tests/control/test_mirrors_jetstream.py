"""Mirrors of the service from NATS JetStream itself, into a topic that JetStream stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Eventually
from tests.control.test_mirrors_kafka import KILLS, RECORDS, WAIT_S, _copy, _kill, _status
from tests.support.control import service_of
from tests.support.nats_server import NatsServer, missing
from tests.system.test_mirror import Engine
from tidecast.client.links.socket_session import EngineControl
from tidecast.config.topology import TopicConfig
from tidecast_control.settings import load_settings

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=missing() or "a server"),
]
LOGIN = 'authorization { users = [ {user: "shop", password: "shop secret"} ] }\n'


@pytest.fixture
def nats(short_dir: Path) -> Iterator[NatsServer]:
    made = NatsServer(short_dir / "nats", LOGIN, user="shop", password="shop secret")
    yield made
    made.close()


@pytest.fixture
def engine(short_dir: Path, nats: NatsServer) -> Iterator[Engine]:
    made = Engine(short_dir)
    yield made
    made.kill()


def test_each_record_is_copied_once_whatever_is_killed(
    database_url: str,
    template: Any,
    engine: Engine,
    nats: NatsServer,
    eventually: Eventually,
    short_dir: Path,
) -> None:
    secret = short_dir / "secret"
    secret.write_text("shop secret")
    storage = f"jetstream://{nats.address}/STORED?user=shop&secret_file={secret}"
    with EngineControl(engine.directory) as control:
        control.create_topic(TopicConfig(name="orders", mode="durable", queues=2, storage=storage))
    for queue in range(2):
        nats.create(f"ORDERS_{queue}", [f"orders.{queue}"])
    sent: dict[int, list[bytes]] = {0: [], 1: []}

    def more() -> None:
        for queue, records in sent.items():
            fresh = [b"%d-%d" % (queue, len(records) + i) for i in range(RECORDS // 2)]
            nats.fill(f"orders.{queue}", fresh)
            records.extend(fresh)

    spec = {
        "direction": "from_jetstream",
        "topic": "orders",
        "servers": nats.address,
        "streams": "ORDERS_0,ORDERS_1",
        "user": "shop",
        "secret": "shop secret",
    }
    beside = load_settings(
        database_url=database_url, data_dir=engine.directory, alert_interval_s=300, port=0
    )
    with service_of(beside) as service:
        template.login.put_on(service.admin)
        service.admin.put("/api/v1/mirrors/in", json={"spec": spec | {"secret": "wrong"}})
        eventually(
            lambda: _status(service, "in")["state"] == "waiting", "refused", timeout_s=WAIT_S
        )
        assert "shop secret" not in service.admin.get("/api/v1/mirrors/in").text
        made = service.admin.put("/api/v1/mirrors/in", json={"spec": spec | {"rate": 300}})
        assert made.status_code == 200, made.text
        for _ in range(KILLS):
            _kill(service, "in", eventually, more)
        service.admin.patch("/api/v1/mirrors/in", json={"spec": {"rate": 0}})
        eventually(
            lambda: (
                [each["durable"] for each in _copy(service, "in")["queues"]]
                == [len(sent[0]) + 1, len(sent[1]) + 1]
            ),
            "all is copied and durable",
            timeout_s=WAIT_S,
        )
        eventually(lambda: _status(service, "in")["error"] == "", "no error", timeout_s=WAIT_S)
        assert _status(service, "in")["gone"] == "0"
    assert engine.values("orders") == sent
