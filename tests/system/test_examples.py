"""The programs of examples/ as real processes: what was sent is what arrived."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from tests.conftest import Eventually
from tests.project import ROOT
from tests.support.lab import Lab, Platform, topology
from tests.support.ports import free_port
from tests.support.process import Child

import tidecast.sync

PROGRAMS = ROOT / "examples"
SHOP = PROGRAMS / "shop"
ORDERS = 200


@pytest.fixture
def place_orders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, with what it imports."""
    monkeypatch.syspath_prepend(SHOP)
    yield importlib.import_module("place_orders")
    for name in ("place_orders", "shop"):
        sys.modules.pop(name)


def page(url: str) -> str:
    """A page of the health checks; empty while it answers 503 or nothing listens."""
    try:
        with urllib.request.urlopen(url, timeout=10.0) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def prices_known(metrics: str) -> bool:
    """Both workers have handled a price of each of three items."""
    counts = re.findall(r'handled_total\{worker="\d",handler="remember".*\} (\d+)', metrics)
    return len(counts) == 2 and all(int(each) >= 3 for each in counts)


def records(platform: Platform, topic: str) -> list[Any]:
    """All records of a durable topic, as `tidecast sub --json` shows them."""
    shown = platform.run("sub", topic, "--from", "earliest", "--until-end", "--json").stdout
    return [json.loads(line) for line in shown.splitlines()]


def test_the_shop_of_the_tutorial(lab: Lab, place_orders: Any, eventually: Eventually) -> None:
    """Two workers, orders placed twice: each becomes one invoice or one dead letter."""
    platform = lab.platform()
    health = f"127.0.0.1:{free_port()}"
    url = f"http://{health}"
    app = lab.spawn(
        "run",
        "shop:app",
        "--app-dir",
        str(SHOP),
        "--workers",
        "2",
        "--health",
        health,
        platform=platform,
        stdout=subprocess.PIPE,
    )
    eventually(lambda: page(f"{url}/readyz"), "two workers", timeout_s=60.0)
    feed = lab.program(SHOP / "price_feed.py", platform=platform)
    eventually(lambda: prices_known(page(f"{url}/metrics")), "prices", timeout_s=60.0)
    for _ in range(2):
        placed = lab.program(SHOP / "place_orders.py", "monday", str(ORDERS), platform=platform)
        assert placed.line() == f"{ORDERS} orders are on disk"
        assert placed.code() == 0
    client = platform.connect()
    assert client.topics.get("orders").queues == 4

    def lag() -> int:
        return int(client.subscriptions.get("orders", "pricing").lag)

    eventually(lambda: lag() == 0, "each order is priced or given up", timeout_s=60.0)

    given = [place_orders.order(number) for number in range(1, ORDERS + 1)]
    prices = importlib.import_module("price_feed").PRICES
    billed = {
        each.id: prices[each.item] * each.quantity
        for each in given
        if each.quantity and each.item in prices
    }
    invoices = [json.loads(each["data"]) for each in records(platform, "invoices")]
    assert len(invoices) == len(billed) == ORDERS - 16
    assert {each["order"]: each["total"] for each in invoices} == billed
    letters = {
        json.loads(each["data"])["id"]: each["headers"]["dead-reason"]
        for each in records(platform, "orders.failed")
    }
    reasons = {"KeyError: 'snow'", "the quantity is below 1"}
    assert letters.keys() == {each.id for each in given} - billed.keys()
    assert set(letters.values()) == reasons

    assert float(client.request("quotes", b"tea", timeout=10.0).data) == prices["tea"]
    with pytest.raises(tidecast.RequestFailed, match="snow"):
        client.request("quotes", b"snow", timeout=10.0)
    shown = platform.json("subscription", "show", "orders", "pricing")
    assert shown["lag"] == 0
    feed.signal(signal.SIGINT)
    assert feed.code() == 0
    app.signal(signal.SIGTERM)
    assert app.code() == 0


def test_the_tests_of_the_tutorial() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"]
    done = subprocess.run(
        command, cwd=SHOP, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def ledger(program: Child) -> Any:
    """The report that a program prints when all its messages have arrived."""
    found = json.loads(program.line())
    assert program.code() == 0, found
    return found


def test_a_feed_reaches_each_subscriber(lab: Lab) -> None:
    found = ledger(lab.program(PROGRAMS / "feed.py", "3000", platform=lab.platform()))
    assert found["sent"]["messages"] == 3000
    assert found["arrived"] == [found["sent"]] * 3
    assert found["gaps"] == 0


def test_an_order_pipeline_misses_no_order_of_a_killed_consumer(lab: Lab) -> None:
    found = ledger(lab.program(PROGRAMS / "order_pipeline.py", "2000", platform=lab.platform()))
    assert found["stored_twice"] <= 50  # the batch of the consumer that was killed
    del found["stored_twice"]
    assert found == {
        "sent": 2000,
        "missing": 0,
        "handled": 1960,
        "dead_letters": 40,
        "wrong_dead_letters": 0,
    }


def test_a_remote_client_has_two_rights_and_no_more(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "tck_of-this-test"
    scopes = [{"pattern": "remote.orders", "rights": ["publish", "subscribe"]}]
    key = {"id": "k1", "sha256": hashlib.sha256(secret.encode()).hexdigest(), "scopes": scopes}
    topics = [{"name": "remote.orders", "mode": "durable", "queues": 2}]
    platform = lab.platform(topology(topics=topics) | {"keys": [key]}, start=False)
    port = free_port()
    engine = lab.spawn("engine", "--gateway", f"127.0.0.1:{port}", platform=platform)
    assert "gateway" in engine.line()
    platform.connect().subscriptions.create("remote.orders", "shipping")
    monkeypatch.setenv("TIDECAST_KEY", secret)
    url = f"tidecast://127.0.0.1:{port}"
    found = ledger(lab.program(PROGRAMS / "remote_client.py", url, "500", platform=platform))
    assert (found["arrived"], found["same"]) == (500, True)
    assert len(found["refused"]) == 11
    assert set(found["refused"].values()) == {tidecast.AuthError.code}
    assert platform.connect().subscriptions.get("remote.orders", "shipping").lag == 0


def test_three_ways_to_read_find_the_same(lab: Lab) -> None:
    found = ledger(lab.program(PROGRAMS / "compiled_arrow.py", "2000", platform=lab.platform()))
    assert found["compiled"] == found["arrow"] == found["plain"] == found["sent"]
    assert found["sent"][0] == 2000
