"""A page that stays open grows in nothing: memory, document, connections."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import Api, LiveFrames, Platform, create_subscription
from tests.e2e.traffic import consuming, publishing, reading

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
SOAK_FRAMES, PAGE_FRAMES = 560, 6
"""Of live figures: a minute's, and those of a page that is passed."""
PAGES = {
    "/": "Overview",
    "/flow": "Flow",
    "/reliability": "Reliability",
    "/topics": "Topics",
    "/topics/soaked": "soaked",
    "/subscriptions": "Subscriptions",
}
HEAP_GROWTH_MAX = 1.25
HEAP_SLACK_BYTES = 3_000_000
NODES_SLACK, LISTENERS_SLACK = 300, 60
SERVICE_GROWTH_BYTES_MAX = 40_000_000


def _resident_bytes(platform: Platform) -> int:
    pid = json.loads((platform.data_dir / "control-service.json").read_bytes())["pid"]
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


def test_a_minute_of_traffic_leaves_nothing_behind(
    page: Page, platform: Platform, api: Api
) -> None:
    api.topic("soaked")
    api.topic("soaked.kept", mode="durable")
    create_subscription(page, platform, "soaked.kept", "soaker")
    frames = LiveFrames(page)
    page.goto(platform.url + "/")
    chromium = page.context.new_cdp_session(page)
    chromium.send("Performance.enable")

    def measured() -> dict[str, float]:
        chromium.send("HeapProfiler.collectGarbage")
        found = chromium.send("Performance.getMetrics")["metrics"]
        return {one["name"]: one["value"] for one in found}

    def walked() -> None:
        """Every page with live figures once, inside the page; back to the first."""
        for path, title in [*PAGES.items(), ("/", "Overview")]:
            page.evaluate(
                "path => { history.pushState({}, '', path);"
                " dispatchEvent(new PopStateEvent('popstate')) }",
                path,
            )
            expect(page.get_by_role("heading", level=1, name=title)).to_be_visible()
            frames.wait(PAGE_FRAMES)

    with contextlib.ExitStack() as stack:
        for worker in (
            publishing(platform.data_dir, "soaked", 800),
            reading(platform.data_dir, "soaked"),
            publishing(platform.data_dir, "soaked.kept", 200),
            consuming(platform.data_dir, "soaked.kept", "soaker", slow_per_s=50),
        ):
            stack.enter_context(worker)
        walked()  # what is loaded and kept once
        walked()
        before, resident = measured(), _resident_bytes(platform)
        walked()
        frames.wait(SOAK_FRAMES)
        walked()
        after = measured()
    grown = {
        name: (before[name], after[name])
        for name in ("JSHeapUsedSize", "Nodes", "JSEventListeners", "Documents")
    }
    assert (
        after["JSHeapUsedSize"] < before["JSHeapUsedSize"] * HEAP_GROWTH_MAX + HEAP_SLACK_BYTES
    ), grown
    assert after["Nodes"] < before["Nodes"] + NODES_SLACK, grown
    assert after["JSEventListeners"] < before["JSEventListeners"] + LISTENERS_SLACK, grown
    assert after["Documents"] <= before["Documents"], grown
    assert len(frames.urls) == 1, "one connection, opened once"
    assert _resident_bytes(platform) < resident + SERVICE_GROWTH_BYTES_MAX
