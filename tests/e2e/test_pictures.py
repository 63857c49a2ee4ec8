"""Pictures of every page, of a real platform with two engines and traffic.

`TIDECAST_PICTURES=docs/screenshots` keeps them there; without it they are made and looked at only
as far as a test can: the page is complete and says nothing of an error.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import Api, LiveFrames, Platform
from tests.e2e.traffic import Worker, consuming, publishing, reading, refusing
from tests.project import ROOT
from tests.support import nats_server
from tidecast_control.postgres import EmbeddedPostgres

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
WIDTH, HEIGHT, TALL = 1440, 900, 1250
CHART_FRAMES, PAGE_FRAMES = 100, 12
"""Live figures that the charts gather before the first picture, and on each page."""
GATHERED_FRAMES = {
    "topic": 80,
    "topics": 40,
    "reliability": 60,
    "subscriptions": 40,
    "subscription": 80,
    "mirrors": 60,
}
"""On pages with charts of their own."""
LABELS = {"team": "shop"}
MIRRORED, MIRRORED_PER_S = 200_000, 1_500
PAST = """insert into rollup_minute (at, node, topic, queue, subscription, in_per_s, out_per_s,
    messages_in, messages_out, bytes_in, bytes_out)
select date_trunc('minute', now()) - n * interval '1 minute', 'past', 'md.eu', -1, '',
    rate, rate * 0.98, rate * 60, rate * 58.8, rate * 12000, rate * 11760
from generate_series(1, 1440) n,
    lateral (select 260 + 130 * sin(n / 229.0) + 25 * sin(n / 7.0) + 12 * sin(n * n) as rate) r"""
"""A day of rollups, made up: gathering them would take the day."""

PAGES: dict[str, tuple[str, str, int]] = {
    "overview": ("/", "Overview", 800),
    "flow": ("/flow", "Flow", 800),
    "reliability": ("/reliability", "Reliability", TALL),
    "alerts": ("/alerts", "Alerts", 560),
    "topics": ("/topics", "Topics", 640),
    "topic": ("/topics/md.eu", "md.eu", TALL),
    "subscriptions": ("/subscriptions", "Subscriptions", 480),
    "subscription": ("/subscriptions/billing", "billing", 1000),
    "messages": ("/messages?topic=md.eu&view=tail", "Messages", 760),
    "limits": ("/limits?topic=md.us", "Rate limits", 480),
    "nodes": ("/nodes", "Nodes", 700),
    "cluster": ("/cluster", "Cluster", 560),
    "mirrors": ("/mirrors?name=shop", "Mirrors", 900),
    "pipelines": ("/pipelines", "Pipelines", 560),
    "access": ("/access", "Keys & users", 560),
    "audit": ("/audit", "Audit", 800),
}


def _made(api: Api) -> None:
    """Create resources as on a platform that has run for some weeks."""
    for name in ("md.eu", "md.us"):
        _put(api, "topics", name, {"history_bytes": 8 << 20})
    for name, queues in (("orders.eu", 4), ("orders.us", 2), ("jobs", 1), ("jobs.dead", 1)):
        _put(api, "topics", name, {"mode": "durable", "queues": queues}, LABELS)
    _put(api, "subscriptions", "billing", {"topic": "orders.eu"})
    _put(api, "subscriptions", "shipping", {"topic": "orders.eu"})
    _put(api, "subscriptions", "workers", {"topic": "jobs", "dead_letter": "jobs.dead"})
    _put(
        api,
        "rate-limits",
        "market-data",
        {"pattern": "md.*", "priority": 10, "rate_packets_per_s": 400},
    )
    _put(api, "rate-limits", "everything", {"pattern": ">", "rate_bytes_per_s": 50_000_000})
    _put(
        api,
        "alert-rules",
        "consumer-lag",
        {"metric": "lag_s", "target": ">", "threshold": 5, "for_s": 1, "severity": "warning"},
    )
    _put(
        api,
        "alert-rules",
        "node-down",
        {"metric": "node_down", "target": ">", "threshold": 0, "for_s": 10, "severity": "critical"},
    )
    api.ask("POST", "/keys", {"name": "deploy", "role": "operator"})
    api.ask("POST", "/keys", {"name": "wall-display", "role": "viewer"})
    api.ask("PUT", "/users/mia", {"role": "operator", "password": "correct horse battery"})
    name = api.ask("GET", "/topics/md.eu")["spec"]["transport"] or "multicast"
    api.ask("PATCH", f"/transports/{name}", {"spec": {"allow_faults": True}})
    _put(api, "faults", name, {"drop": 0.02, "seed": 7, "expires_s": 600})


def _put(
    api: Api, path: str, name: str, spec: object, labels: dict[str, str] | None = None
) -> None:
    body = {"spec": spec, "metadata": {"labels": labels or {}}}
    api.ask("PUT", f"/{path}/{name}", body)


@pytest.fixture(scope="module")
def traffic(platform: Platform, second: Path, api: Api) -> Iterator[None]:
    """Publishers, readers and consumers, some of them too slow."""
    _made(api)
    with psycopg.connect(EmbeddedPostgres(platform.data_dir / "postgres").url) as connection:
        connection.execute(PAST)
    one, other = platform.data_dir, second
    workers: list[Worker] = [
        reading(other, "md.eu"),
        reading(other, "md.us"),
        reading(one, "md.eu"),
        publishing(one, "md.eu", 1_500),
        publishing(one, "md.us", 600, size=1_200),
        publishing(one, "orders.eu", 250),
        publishing(one, "orders.us", 40),
        consuming(one, "orders.eu", "billing", slow_per_s=150),
        consuming(one, "orders.eu", "shipping", slow_per_s=100),
        publishing(one, "jobs", 2),
        refusing(one, "jobs", "workers"),
    ]
    workers[8].fast.set()  # one of the two consumers keeps up
    with contextlib.ExitStack() as stack:
        for worker in workers:
            stack.enter_context(worker)
        stack.enter_context(_mirror(api))
        yield


@contextlib.contextmanager
def _mirror(api: Api) -> Iterator[None]:
    """A mirror of a stream of NATS, that has a while to go."""
    with nats_server.nats_server() as nats:
        nats.create("SHOP", ["shop.>"])
        nats.fill("shop.orders", [b"%d" % i for i in range(MIRRORED)])
        _put(api, "topics", "shop", {"mode": "durable", "queues": 1}, LABELS)
        spec = {
            "direction": "from_jetstream",
            "topic": "shop",
            "servers": nats.address,
            "streams": "SHOP",
            "rate": MIRRORED_PER_S,
        }
        _put(api, "mirrors", "shop", spec)
        try:
            yield
        finally:
            api.ask("DELETE", "/mirrors/shop")


@pytest.mark.skipif(bool(nats_server.missing()), reason=nats_server.missing() or "a server")
@pytest.mark.usefixtures("home")
def test_pictures(page: Page, platform: Platform, traffic: None, tmp_path: Path) -> None:
    kept = os.environ.get("TIDECAST_PICTURES")
    directory = ROOT / kept if kept else tmp_path
    directory.mkdir(parents=True, exist_ok=True)
    frames = LiveFrames(page)
    page.reload()
    expect(page.get_by_label("Busiest topics").get_by_role("link").nth(2)).to_be_visible(
        timeout=40_000
    )
    frames.wait(CHART_FRAMES)
    for name, (path, title, height) in PAGES.items():
        page.set_viewport_size({"width": WIDTH, "height": height})
        _open(page, path)
        expect(page.get_by_role("heading", level=1, name=title)).to_be_visible()
        page.wait_for_load_state("networkidle")
        expect(page.get_by_role("status", name="Loading")).to_have_count(0)
        expect(page.get_by_role("alert")).to_have_count(0)
        if name == "mirrors":
            expect(page.get_by_test_id("mirror-records")).to_contain_text("copied", timeout=240_000)
        frames.wait(GATHERED_FRAMES.get(name, PAGE_FRAMES))
        page.screenshot(path=directory / f"{name}.png", timeout=60_000)
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    _open(page, "/topics")
    page.keyboard.press("c")
    page.get_by_label("Name", exact=True).fill("orders.asia")
    expect(page.get_by_label("Preview")).to_contain_text("create")
    page.screenshot(path=directory / "create.png", timeout=60_000)
    page.keyboard.press("Escape")
    page.keyboard.press("y")
    page.get_by_label("Documents").fill(
        "kind: topic\nmetadata: {name: md.eu}\nspec: {history_bytes: 16777216, linger_us: 50}\n"
    )
    page.get_by_role("button", name="Plan").click()
    expect(page.get_by_role("region", name="Plan")).to_contain_text("updated")
    page.screenshot(path=directory / "yaml.png", timeout=60_000)
    page.keyboard.press("Escape")
    page.keyboard.press("d")
    expect(page.locator("html")).to_have_attribute("data-theme", re.compile("light"))
    page.set_viewport_size({"width": WIDTH, "height": 800})
    _open(page, "/")
    frames.wait(PAGE_FRAMES)
    page.screenshot(path=directory / "light.png", timeout=60_000)
    page.keyboard.press("d")
    small = [p.name for p in directory.glob("*.png") if p.stat().st_size < 20_000]
    assert not small, f"hardly anything in {small}"


def _open(page: Page, path: str) -> None:
    """Inside the page, so that its charts keep what they have gathered."""
    page.evaluate(
        "path => { history.pushState({}, '', path); dispatchEvent(new PopStateEvent('popstate')) }",
        path,
    )
