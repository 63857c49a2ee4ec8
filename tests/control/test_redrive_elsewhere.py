"""Dead letters at one engine, their subscription at another: sent again by way of the service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conftest import Eventually
from tests.control.test_link import _engine as engine_at
from tests.control.test_link import control
from tests.support.control import Running
from tests.support.lab import multicast, topology
from tidecast.telemetry.views import connect_inside

FIXTURES = (control,)


def test_letters_that_another_engine_keeps_are_sent_again_once(
    control: Running, short_dir: Path, eventually: Eventually
) -> None:
    shared, engines = multicast(), []
    try:
        for name in "ab":
            (short_dir / name).mkdir()
            settings = json.dumps(topology(shared, name=name))
            (short_dir / name / "topology.yaml").write_text(settings)
            engines.append(engine_at(control, short_dir / name))
        _through_the_service(control, engines[1].node, eventually)
    finally:
        for engine in engines:
            engine.stop()


def _through_the_service(control: Running, node: Any, eventually: Eventually) -> None:
    def put(path: str, **spec: Any) -> None:
        answer = control.api.put(path, json={"spec": spec})
        assert answer.status_code == 201, answer.text

    def redrive(query: str = "", **body: Any) -> dict[str, Any]:
        answer = control.api.post(f"/subscriptions/billing/redrive{query}", json=body)
        assert answer.status_code == 200, answer.text
        [value] = [one["value"] for one in answer.json()["results"] if one["ok"]]
        return {name: value[name] for name in ("records", "unverified", "sent_by")}

    put("/topics/dead", mode="durable", owner="a", transport="multicast")
    put("/topics/orders", mode="durable", owner="b", transport="multicast")
    put("/subscriptions/billing", topic="orders", dead_letter="dead", start={"at": "earliest"})
    client = connect_inside(node, "shop")
    billing, audit = client.consumer("orders", "billing"), client.consumer("orders", "audit")
    for i in range(3):
        client.publish("orders", b"%d" % i)
        billing.next(10.0).term("no")
        audit.next(10.0).ack()
    eventually(lambda: billing.info()["dead_open"] == 3, "the letters", timeout_s=60)

    assert redrive("?dry_run=true") == {"records": "3", "unverified": "0", "sent_by": "a"}
    assert redrive(count_max=2) == {"records": "2", "unverified": "0", "sent_by": "a"}
    assert [billing.next(10.0).copy().data for _ in range(2)] == [b"0", b"1"]
    assert billing.info()["dead_open"] == 1
    assert redrive() == {"records": "1", "unverified": "0", "sent_by": "a"}
    assert billing.next(10.0).data == b"2"
    assert billing.info()["dead_open"] == 0
    assert redrive() == {"records": "0", "unverified": "0", "sent_by": "a"}
    assert audit.info()["lag"] == 0, "copies are for one subscription"
    client.close()
