"""A durable topic that NATS JetStream itself stores, by REST: created, written, read, deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Eventually
from tests.control.test_link import control, engine
from tests.support.control import Running
from tests.support.jetstream_storage import last_sequence, stored, url
from tests.support.nats_server import NatsServer, missing
from tidecast.engine.process import Engine
from tidecast.telemetry.views import connect_inside

FIXTURES = (control, engine)
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(missing()), reason=missing() or "a server"),
]
RECORDS = 20


@pytest.fixture
def nats(short_dir: Path) -> Iterator[NatsServer]:
    made = NatsServer(short_dir / "nats")
    yield made
    made.close()


def test_a_topic_on_jetstream_is_made_written_read_and_deleted(
    control: Running, engine: Engine, nats: NatsServer, eventually: Eventually
) -> None:
    node, api = engine.node, control.api
    assert node is not None
    spec = {"mode": "durable", "queues": 2, "storage": url(nats)}
    wrong = api.put("/topics/orders", json={"spec": spec | {"storage": "jetstream://nowhere"}})
    assert wrong.status_code == 422, wrong.text
    made = api.put("/topics/orders", json={"spec": spec})
    assert made.status_code == 201, made.text
    assert api.get("/topics/orders").json()["spec"]["storage"] == url(nats)
    wanted = {"spec": {"topic": "orders", "start": {"at": "earliest"}}}
    assert api.put("/subscriptions/billing", json=wanted).status_code == 201
    eventually(lambda: node.consumers.perform("list", {}), "the subscription", timeout_s=60)

    for number in range(RECORDS):
        sent = api.post(
            "/topics/orders/messages",
            json={"text": f"{number}", "key": f"k{number % 5}", "ack": "durable"},
        )
        assert sent.status_code == 201, sent.text
        assert sent.json()["ack"] == "durable"
    texts = {b"%d" % number for number in range(RECORDS)}
    there = stored(nats)
    assert {payload for queue in there for payload in queue} == texts, "acked is stored"
    assert sum(len(queue) for queue in there) == RECORDS
    found = api.get(f"/topics/orders/messages?limit={RECORDS + 1}&start=earliest").json()
    assert {each["payload"]["text"].encode() for each in found["messages"]} == texts

    client = connect_inside(node, "shop")  # type: ignore[arg-type]
    with client.consumer("orders", "billing") as consumer:
        read = list[bytes]()
        while len(read) < RECORDS:
            for message in consumer.fetch(RECORDS, max_wait=30.0):
                read.append(bytes(message.data))
                message.ack()
        assert sorted(read) == sorted(texts)
        eventually(lambda: consumer.info()["lag"] == 0, "all acks", timeout_s=30)
    client.close()

    ends = [last_sequence(nats, f"ORDERS_{queue}") for queue in range(2)]
    assert api.delete("/subscriptions/billing").status_code == 200
    gone = api.delete("/topics/orders")
    assert gone.status_code == 200, gone.text
    eventually(lambda: "orders" not in {t.name for t in node.topics()}, "its end", timeout_s=60)
    assert api.get("/topics/orders").status_code == 404
    assert stored(nats) == there, "the streams stay"
    assert [last_sequence(nats, f"ORDERS_{queue}") for queue in range(2)] == ends
