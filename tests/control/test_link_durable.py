"""Durable subscriptions by way of the service: made, lag seen, paused, moved, ended."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.conftest import Eventually
from tests.control.test_link import control, engine
from tests.support.control import Running
from tidecast.engine.process import Engine
from tidecast.queues.generator import GeneratorAdapter, Recipe
from tidecast.telemetry.views import connect_inside

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
    _statuses(control)
    _attached(control, node.consumers.attached, eventually)  # type: ignore[attr-defined]
    with control.live("subscriptions") as feed:
        shown = feed.until(
            "subscriptions",
            lambda data: (
                data.get("subscriptions", {}).get("billing", {}).get("lag_messages") == "10"
            ),
        )
    billing = shown["subscriptions"]["billing"]
    assert (billing["state"], billing["pressure"]) == ("idle", "no member")
    assert sum(int(c["lag_messages"]) for c in billing["cursors"].values()) == 10
    planned = control.api.post("/subscriptions/billing/pause?dry_run=true").json()
    assert planned["state"] == "done"
    assert not node.consumers.perform("list", {})[0]["paused"]
    done = control.api.post("/subscriptions/billing/pause")
    assert done.status_code == 200, done.text
    assert done.json()["cli"] == "tidecast subscription pause orders billing"
    assert node.consumers.perform("list", {})[0]["paused"]
    moved = control.api.post("/subscriptions/billing/seek", json={"at": "latest"})
    assert moved.status_code == 200, moved.text
    cursors = moved.json()["results"][0]["value"]["cursors"]
    assert sum(int(cursor["records"]) for cursor in cursors) == 10
    assert control.api.post("/topics/orders/pause").status_code == 200
    eventually(
        lambda: {q["state"] for q in control.api.get("/queues").json()["items"]} == {"paused"},
        "the queues' pause",
        timeout_s=30,
    )
    _redriving(control)
    _browsing(control)
    _purging(control)
    client.close()
    assert control.api.delete("/subscriptions/billing").status_code == 200
    eventually(lambda: there() == [], "the subscription's end", timeout_s=30)


def _attached(control: Running, adapters: Any, eventually: Eventually) -> None:
    """Queues that an adapter keeps are in no topology, and listed all the same."""
    adapters.attach("feed", GeneratorAdapter(2, 50, Recipe(seed=3)))

    def listed() -> list[tuple[str, str]]:
        first = control.api.get("/queues", params={"limit": 3}).json()
        found = first["items"]
        if first["next_cursor"]:
            rest = control.api.get("/queues", params={"cursor": first["next_cursor"]})
            found += rest.json()["items"]
        return [(q["name"], q["adapter"]) for q in found]

    due = [("feed:0", "generator"), ("feed:1", "generator"), ("orders:0", ""), ("orders:1", "")]
    eventually(lambda: listed() == due, "the list, in two pages", timeout_s=30)
    assert control.api.get("/queues/feed:0").json()["latest"] == "50"
    assert control.api.get("/queues/feed:1").json()["adapter"] == "generator"
    assert control.api.get("/queues/feed:2").status_code == 404
    _listed_topics(control)
    adapters.detach("feed")


def _listed_topics(control: Running) -> None:
    """Once each, by filter, in pages, in the total; a resource only if it is one."""

    def names(**params: Any) -> list[str]:
        found, cursor = list[str](), None
        while True:
            given = params | ({"cursor": cursor} if cursor else {})
            page = control.api.get("/topics", params={"limit": 1, **given}).json()
            found += [item["metadata"]["name"] for item in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    assert "feed" not in names()
    for sort in ("name", "-name", "created_at", "-created_at"):
        assert sorted(names(adapters=True, sort=sort)) == sorted([*names(), "feed"]), sort
    assert names(adapters=True) == sorted(names(adapters=True))
    assert names(adapters=True, q="FEE") == ["feed"]
    assert names(adapters=True, q="nothing") == []
    assert names(adapters=True, label="a=b") == []
    params = {"adapters": True, "count": True}
    whole = control.api.get("/topics", params=params).json()
    assert whole["total"] == len(whole["items"]) == len(names()) + 1
    (feed,) = [item for item in whole["items"] if item["metadata"]["name"] == "feed"]
    assert (feed["metadata"]["generation"], feed["spec"]["queues"]) == (0, 2)
    assert feed["status"]["adapters"] == ["generator"]
    assert not feed["status"]["drift"]
    assert control.api.get("/topics/feed").status_code == 404
    assert control.api.put("/topics/feed", json={"spec": {}}).status_code == 201
    both = control.api.get("/topics", params=params).json()
    (feed,) = [item for item in both["items"] if item["metadata"]["name"] == "feed"]
    assert both["total"] == whole["total"], "a name in both is counted once"
    assert (feed["metadata"]["generation"], feed["status"]["adapters"]) == (1, ["generator"])
    assert control.api.delete("/topics/feed").status_code == 200


def _statuses(control: Running) -> None:
    """The status in REST without a viewer of the page: the service asks the engines."""
    assert control.api.get("/system").json()["watchers"] == 0
    status = control.api.get("/subscriptions/billing").json()["status"]
    assert (status["state"], status["lag_messages"], status["members"]) == ("idle", "10", 0)
    assert 0 < status["lag_s"] < 60
    queues = control.api.get("/queues?topic=orders").json()["items"]
    assert [q["name"] for q in queues] == ["orders:0", "orders:1"]
    assert sum(int(q["latest"]) for q in queues) == 10
    assert sum(int(q["lag_messages"]) for q in queues) == 10
    assert {q["state"] for q in queues} == {"open"}
    assert all(int(q["bytes"]) > 0 and q["node"] and q["cache_fill"] == 0 for q in queues)
    assert {q["pressure"] for q in queues if q["lag_messages"] != "0"} == {"no member"}
    topic = control.api.get("/topics/orders").json()["status"]
    assert topic["publishers"] == 1
    live = control.api.get("/live/topics/orders").json()
    assert set(live["queues"]) == {"orders:0", "orders:1"}
    assert live["topic"]["lag_messages"] == str(max(int(q["lag_messages"]) for q in queues))
    flow = control.api.get("/live/flow").json()
    node = next(q["node"] for q in queues)
    for edge in (
        "topic/orders>queue/orders:0",
        f"queue/orders:0>agent/{node}",
        f"agent/{node}>subscription/billing",
    ):
        assert edge in flow["edges"]
    assert flow["edges"][f"agent/{node}>subscription/billing"]["lag_packets"] == "10"
    assert not [e for e in flow["edges"] if e.startswith("topic/orders>subscriber/")]


def _redriving(control: Running) -> None:
    """Which dead letters, by a filter; what is wrong in it is said."""
    where = 'headers["dead-attempts"] > 1'
    without = control.api.post("/subscriptions/billing/redrive?dry_run=true", json={"where": where})
    assert without.status_code == 422
    assert "billing of orders has no dead-letter topic" in without.text
    put = control.api.put("/topics/letters", json={"spec": {"mode": "durable", "queues": 1}})
    assert put.status_code == 201
    spec = {"topic": "orders", "dead_letter": "letters"}
    assert control.api.put("/subscriptions/kept", json={"spec": spec}).status_code == 201
    at = "/subscriptions/kept/redrive?dry_run=true"
    told = control.api.post(at, json={"where": where}).json()
    assert told["results"][0]["value"]["records"] == "0"
    assert told["cli"].endswith(f"--where '{where}' --dry-run")
    wrong = control.api.post(at, json={"where": "price > 3"})
    assert "'price' at character 1" in wrong.text
    assert control.api.delete("/subscriptions/kept").status_code in (200, 204)


def _browsing(control: Running) -> None:
    """By position, by token, by time; of one queue or of all; nothing is consumed."""
    at = "/topics/orders/messages"
    everything = control.api.get(at).json()
    assert len(everything["messages"]) == 10
    assert {m["payload"]["text"] for m in everything["messages"]} == {"order"}
    times = [int(m["at_ns"]) for m in everything["messages"]]
    assert times == sorted(times)
    assert everything["next_token"] is None
    mine = [m for m in everything["messages"] if m["queue"] == 0]
    assert len(mine) > 2
    page = control.api.get(at, params={"queue": 0, "limit": 2}).json()
    assert [m["key"] for m in page["messages"]] == [m["key"] for m in mine[:2]]
    assert (page["complete"], page["next_token"]) == (False, "2")
    rest = control.api.get(at, params={"queue": 0, "start": "token", "token": "2"}).json()
    assert [m["token"] for m in rest["messages"]] == [str(n) for n in range(2, len(mine))]
    newest = control.api.get(at, params={"start": "latest", "limit": 3}).json()
    assert [m["at_ns"] for m in newest["messages"]] == [str(t) for t in times[-3:]]
    later = control.api.get(at, params={"start": "time", "time_ns": str(times[-1] + 10**9)})
    assert later.json()["messages"] == []
    assert len(control.api.get(at, params={"q": "k7"}).json()["messages"]) == 1
    wrong = control.api.get(at, params={"start": "token", "token": "2"})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_request")


def _purging(control: Running) -> None:
    """Typed again, never by accident; the subscription resumes behind what is gone."""
    refused = control.api.post("/queues/orders:0/purge")
    assert (refused.status_code, refused.json()["errors"][0]["allowed"]) == (422, "orders:0")
    planned = control.api.post("/queues/orders:0/purge?dry_run=true").json()
    [row] = planned["results"][0]["value"]["queues"]
    assert int(row["messages"]) > 2
    kept = control.api.get("/topics/orders/messages").json()["messages"]
    assert len(kept) == 10
    control.api.patch("/topics/orders", json={"metadata": {"deletion_protection": True}})
    protected = control.api.post("/queues/orders:0/purge?confirm=orders:0")
    assert (protected.status_code, protected.json()["code"]) == (409, "protected")
    control.api.patch("/topics/orders", json={"metadata": {"deletion_protection": False}})
    done = control.api.post("/queues/orders:0/purge?confirm=orders:0")
    assert done.status_code == 200, done.text
    left = control.api.get("/topics/orders/messages").json()["messages"]
    assert {m["queue"] for m in left} == {1}
    assert len(left) == 10 - int(row["messages"])
    assert control.api.post("/topics/orders/purge?confirm=orders").status_code == 200
    assert control.api.get("/topics/orders/messages").json()["messages"] == []


def test_filters_reach_the_engine(control: Running, engine: Engine, eventually: Eventually) -> None:
    node = engine.node
    assert node is not None
    control.api.put("/topics/orders", json={"spec": {"mode": "durable"}})
    spec = {"topic": "orders", "filter": 'key.startswith("eu-") and headers["level"] == "error"'}
    made = control.api.put("/subscriptions/eu", json={"spec": spec})
    assert made.status_code == 201, made.text

    def there() -> list[str]:
        return [s["where"] for s in node.consumers.perform("list", {})]

    eventually(lambda: there() == [spec["filter"]], "the filter", timeout_s=30)
    for wrong in ("key=a", 'color == "red"', "size", "size > 1 ="):
        answer = control.api.put(
            "/subscriptions/x", json={"spec": {"topic": "orders", "filter": wrong}}
        )
        assert answer.json()["errors"][0]["pointer"] == "/spec/filter", wrong
    changed = control.api.patch("/subscriptions/eu", json={"spec": {"filter": 'key == "us"'}})
    assert changed.status_code == 422


def test_a_message_that_is_acked_as_durable_is_on_disk(control: Running, engine: Engine) -> None:
    for topic, mode in (("kept", "durable"), ("passing", "live")):
        made = control.api.put(f"/topics/{topic}", json={"spec": {"mode": mode}})
        assert made.status_code == 201
    refused = control.api.post("/topics/passing/messages", json={"text": "x", "ack": "durable"})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "/ack"
    for ack in ("engine", "durable"):
        done = control.api.post("/topics/kept/messages", json={"text": "x", "ack": ack})
        assert (done.status_code, done.json()["ack"]) == (201, ack)
    logs = engine.node.durable.topics["kept"].logs  # type: ignore[union-attr]
    assert sum(log.durable_token for log in logs) == 2


def test_a_message_is_published_with_a_delivery_time(control: Running, engine: Engine) -> None:
    for topic, mode in (("later", "durable"), ("live", "live")):
        made = control.api.put(f"/topics/{topic}", json={"spec": {"mode": mode}})
        assert made.status_code == 201
    far = datetime.now(UTC) + timedelta(days=400)
    for topic, field, value, detail in (
        ("live", "deliver_in_s", 1.0, "topic live is live"),
        ("later", "deliver_in_s", -1.0, "-1.0: allowed >= 0.0"),
        ("later", "deliver_at", far.isoformat(), "400 days ahead: at most 365"),
        ("later", "deliver_at", "2030-01-01T00:00:00", "ISO 8601 with a time zone"),
    ):
        for query in ("", "?dry_run=true"):
            at = f"/topics/{topic}/messages{query}"
            refused = control.api.post(at, json={"text": "x", field: value})
            assert refused.status_code == 422, refused.text
            [error] = refused.json()["errors"]
            assert error["pointer"] == f"/{field}"
            assert detail in error["detail"]
    soon = datetime.now(UTC) + timedelta(seconds=1)
    for body in ({"deliver_in_s": 1.0}, {"deliver_at": soon.isoformat()}):
        done = control.api.post("/topics/later/messages", json={"text": "x", **body})
        assert done.status_code == 201, done.text
    client = connect_inside(engine.node, "shop")  # type: ignore[arg-type]
    with client.consumer("later", "reader") as consumer:
        for _ in range(2):
            message = consumer.next(timeout=30.0)
            assert message.deliver_at is not None
            assert soon.timestamp() - 1 <= message.deliver_at / 1e9 <= time.time()
            message.ack()
    client.close()


def check_pages(control: Running, at: str) -> None:
    """Two pages have all three scheduled messages; a cursor belongs to one list."""
    cut = control.api.get(at, params={"limit": 2}).json()
    assert (len(cut["messages"]), cut["complete"]) == (2, False)
    rest = control.api.get(at, params={"limit": 2, "cursor": cut["next_cursor"]}).json()
    assert [each["key"] for each in cut["messages"] + rest["messages"]] == ["ada", "bob", "cy"]
    assert (rest["complete"], rest["next_cursor"]) == (True, None)
    for params, text in (
        ({"cursor": "AAAA"}, "not a cursor of this list"),
        ({"cursor": cut["next_cursor"][:-3]}, "not a cursor of this list"),
        ({"cursor": cut["next_cursor"], "key": "cy"}, "made for another topic, subscription"),
    ):
        refused = control.api.get(at, params=params)
        assert (refused.status_code, text in refused.text) == (422, True), refused.text


def test_scheduled_messages_are_listed_and_cancelled(
    control: Running, engine: Engine, eventually: Eventually
) -> None:
    """As an operation: planned, done, audited; what has no such place, or is live, is refused."""
    for name, spec in (("planned", {"mode": "durable"}), ("now", {})):
        assert control.api.put(f"/topics/{name}", json={"spec": spec}).status_code == 201
    assert control.api.put("/subscriptions/s", json={"spec": {"topic": "planned"}}).is_success
    client = connect_inside(engine.node, "shop")  # type: ignore[arg-type]
    eventually(
        lambda: [one.name for one in client.subscriptions.list("planned")] == ["s"],
        "the subscription",
        timeout_s=30,
    )
    for key in ("ada", "bob", "cy"):
        client.publish("planned", key.encode(), key=key, deliver_in=3600, ack="durable")
    at = "/topics/planned/scheduled"
    page = control.api.get(at).json()
    assert (page["complete"], page["missing"], page["withheld"]) == (True, [], False)
    assert [each["key"] for each in page["messages"]] == ["ada", "bob", "cy"]
    first = page["messages"][0]
    assert first["subscriptions"] == ["s"]
    assert first["payload"]["text"] == "ada"
    assert int(first["deliver_at_ns"]) > time.time_ns()
    check_pages(control, at)
    assert [m["key"] for m in control.api.get(at, params={"key": "cy"}).json()["messages"]] == [
        "cy"
    ]

    def cancel(body: dict[str, Any], *, dry_run: bool = False) -> Any:
        return control.api.post(f"{at}/cancel", params={"dry_run": dry_run}, json=body)

    planned = cancel({"everything": True}, dry_run=True).json()
    [row] = planned["results"][0]["value"]["subscriptions"]
    assert (row["name"], row["cancelled"], row["too_late"]) == ("s", "3", "0")
    assert planned["cli"] == "tidecast queue cancel planned --all --dry-run"
    place = {"queue": first["queue"], "token": first["token"]}
    done = cancel({"messages": [place]}).json()
    [row] = done["results"][0]["value"]["subscriptions"]
    assert (row["cancelled"], done["state"], done["action"]) == ("1", "done", "cancel_scheduled")
    [row] = cancel({"key": "bob", "subscription": "s"}).json()["results"][0]["value"][
        "subscriptions"
    ]
    assert row["cancelled"] == "1"
    assert [m["key"] for m in control.api.get(at).json()["messages"]] == ["cy"]
    assert client.subscriptions.get("planned", "s").cancelled == 2
    audited = control.api.get("/audit", params={"limit": 5}).json()["items"]
    assert [each["action"] for each in audited[:2]] == ["cancel_scheduled"] * 2
    for body, status, text in (
        ({}, 422, "give `messages`"),
        ({"everything": True, "key": "x"}, 422, "give `messages`"),
        ({"messages": [{"queue": 0, "token": "999"}]}, 422, "offset 999 of queue 0: allowed 0"),
        ({"messages": [{"queue": 9, "token": "0"}]}, 422, "queue 9: planned has queues 0 to"),
        ({"where": "price > 3"}, 422, "'price' at character 1"),
        ({"everything": True, "subscription": "x"}, 404, "no subscription x"),
    ):
        refused = cancel(body)
        assert (refused.status_code, text in refused.text) == (status, True), refused.text
    assert control.api.get("/topics/now/scheduled").status_code == 409
    assert (
        control.api.post("/topics/now/scheduled/cancel", json={"everything": True}).status_code
        == 409
    )
    assert control.api.get("/topics/none/scheduled").status_code == 404
    client.close()
    for path in ("subscriptions/s", "topics/planned", "topics/now"):
        assert control.api.delete(f"/{path}").is_success
