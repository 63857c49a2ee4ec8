"""Durable subscriptions by way of the service: made, lag seen, paused, moved, ended."""

from __future__ import annotations

from tests.conftest import Eventually
from tests.control.test_link import control, engine
from tests.support.control import Running
from tidecast.node.control_link_views import connect_inside
from tidecast.node.process import Engine

FIXTURES = (control, engine)


def test_a_subscription_is_made_seen_paused_and_moved(
    control: Running,
    engine: Engine,
    eventually: Eventually,
) -> None:
    node = engine.node
    assert node is not None
    topic = {"spec": {"mode": "durable", "queues": 2}}
    assert control.api.put("/topics/orders", json=topic).status_code == 201
    wanted = {"spec": {"topic": "orders", "start": {"at": "earliest"}}}
    assert control.api.put("/subscriptions/billing", json=wanted).status_code == 201

    def there() -> list[str]:
        return [s["name"] for s in node.consumers.perform("list", {})]

    eventually(lambda: there() == ["billing"], "the subscription on the engine", timeout_s=30)
    client = connect_inside(node, "shop")  # type: ignore[arg-type]
    publisher = client.publisher("orders")
    for number in range(10):
        publisher.publish(b"order", key=f"k{number}")
    publisher.flush()
    with control.live("subscriptions") as feed:
        shown = feed.until(
            "subscriptions",
            lambda data: (
                data.get("subscriptions", {}).get("billing", {}).get("lag_messages") == "10"
            ),
        )
    assert shown["subscriptions"]["billing"]["state"] == "idle"
    planned = control.api.post("/subscriptions/billing/pause?dry_run=true").json()
    assert planned["state"] == "done"
    assert not node.consumers.perform("list", {})[0]["paused"]
    done = control.api.post("/subscriptions/billing/pause")
    assert done.status_code == 200, done.text
    assert done.json()["cli"] == "tidecast subscription pause billing"
    assert node.consumers.perform("list", {})[0]["paused"]
    moved = control.api.post("/subscriptions/billing/seek", json={"at": "latest"})
    assert moved.status_code == 200, moved.text
    lanes = moved.json()["results"][0]["value"]["lanes"]
    assert sum(lane["records"] for lane in lanes) == 10
    assert control.api.post("/topics/orders/pause").status_code == 200
    purge = control.api.post("/queues/orders:0/purge")
    assert (purge.status_code, purge.json()["code"]) == (501, "not_implemented")
    client.close()
    assert control.api.delete("/subscriptions/billing").status_code == 200
    eventually(lambda: there() == [], "the subscription's end", timeout_s=30)
