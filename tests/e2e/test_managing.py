"""Management from the page: policies, pipelines, history."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Eventually
from tests.e2e.conftest import Api, Platform
from tests.e2e.traffic import publishing
from tidecast_control.postgres import EmbeddedPostgres

pytestmark = [pytest.mark.long]


DRAWN = """(figure) => {
    const canvas = figure.querySelector("canvas");
    const { width, height } = canvas;
    const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
    let columns = 0;
    for (let x = 0; x < width; x += 1) {
        for (let y = 0; y < height; y += 1) {
            const [r, g, b, a] = pixels.slice(4 * (y * width + x), 4 * (y * width + x) + 4);
            if (a > 20 && Math.max(r, g, b) - Math.min(r, g, b) > 60) { columns += 1; break; }
        }
    }
    return columns / width;
}"""
"""The share of a chart's width over which a coloured line is drawn."""
SECONDS = 14


def test_a_chart_begins_with_the_minutes_before_its_page_was_opened(
    page: Page, platform: Platform, api: Api, eventually: Eventually
) -> None:
    """The overview was open: engines measured."""
    api.topic("before")
    with publishing(platform.data_dir, "before", 200) as worker:
        eventually(lambda: worker.done > 200 * SECONDS, "some traffic", timeout_s=60)
        frames: list[Any] = []

        def note(text: Any) -> None:
            frame = json.loads(text)
            if frame["channel"] == "topic:before" and frame["kind"] in ("snapshot", "delta"):
                frames.append(frame)

        page.on("websocket", lambda socket: socket.on("framereceived", note))
        opened = datetime.now(UTC)
        page.goto(platform.url + "/topics/before")
        chart = page.get_by_role("figure", name="Packets/s over time")
        expect(chart).to_contain_text("pkt/s")
        # The axis has 20 s at least: of these the moments since the page was opened are few.
        assert chart.evaluate(DRAWN) > 0.3
        oldest = min(datetime.fromisoformat(frame["at"]) for frame in frames)
        assert (opened - oldest).total_seconds() > SECONDS / 2


def test_a_policy_holds_and_says_where_it_came_from(
    page: Page, platform: Platform, api: Api
) -> None:
    api.topic("md.eu")
    api.topic("md.us", rate_packets_per_s=700)
    page.goto(platform.url + "/limits")
    page.get_by_role("button", name="Create policy").first.click()
    form = page.get_by_role("dialog")
    form.get_by_label("Name", exact=True).fill("market-data")
    form.get_by_label("Topics", exact=True).fill("md.*")
    form.get_by_label("Packets/s").fill("5k")
    expect(form.get_by_label("Preview")).to_contain_text("5000")
    form.get_by_role("button", name="Create", exact=True).click()
    row = page.get_by_role("row", name=re.compile("market-data"))
    expect(row).to_contain_text("5.00k pkt/s")
    expect(row).to_contain_text("1 / 2")
    for topic, limit, source in (
        ("md.eu", "5.00k pkt/s", "by policy market-data"),
        ("md.us", "700 pkt/s", "set on the topic"),
    ):
        page.goto(f"{platform.url}/limits?topic={topic}")
        held = page.get_by_label("Effective limits of a topic")
        expect(held).to_contain_text(limit)
        expect(held).to_contain_text(source)
    page.get_by_role("row", name=re.compile("market-data")).click()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog", name="Delete market-data?").get_by_role(
        "button", name="Delete"
    ).click()
    expect(page.get_by_text("No policy yet")).to_be_visible()


def test_a_pipeline_is_made_run_and_its_end_shown(page: Page, platform: Platform) -> None:
    page.goto(platform.url + "/pipelines")
    page.get_by_role("button", name="Create pipeline").first.click()
    form = page.get_by_role("dialog")
    form.get_by_label("Name", exact=True).fill("keep-orders")
    form.get_by_label("Job").click()
    page.get_by_role("option", name="Archive").click()
    form.get_by_label("Schedule", exact=True).fill("every now and then")
    expect(form.get_by_text("allowed is every N")).to_be_visible()  # under its field
    expect(form.get_by_role("button", name="Create", exact=True)).to_be_disabled()
    form.get_by_label("Schedule", exact=True).fill("0 3 * * *")
    form.get_by_label("Topic", exact=True).fill("orders.>")
    expect(form.get_by_text("allowed is every N")).to_have_count(0)
    form.get_by_role("button", name="Create", exact=True).click()
    row = page.get_by_role("row", name=re.compile("keep-orders"))
    expect(row).to_contain_text("0 3 * * *")
    expect(row).to_contain_text(re.compile(r"in \d+ (h|min)"))
    row.get_by_role("button", name="Start keep-orders").click()
    row.click()
    runs = page.get_by_label("Runs of keep-orders").first
    expect(runs).to_contain_text(re.compile("queued|running"))
    row.get_by_role("button", name="Stop keep-orders").click()
    expect(row.get_by_role("button", name="Start keep-orders")).to_be_visible(timeout=20_000)
    expect(runs).to_contain_text("stopped")
    runs.get_by_role("button", name="Log").first.click()
    expect(page.get_by_role("dialog", name="Log of keep-orders")).to_contain_text(
        "pipeline archive"
    )


def test_history_that_is_not_there_says_how_to_get_it(
    page: Page, platform: Platform, api: Api
) -> None:
    api.topic("quiet.one")
    page.goto(platform.url + "/topics/quiet.one")
    history = page.get_by_label("History")
    expect(history).to_contain_text("No history to show")
    expect(history).to_contain_text(re.compile("rollup", re.IGNORECASE))
    history.get_by_text("90 d", exact=True).click()
    expect(history.get_by_role("radio", name="90 d")).to_be_checked()


def test_history_is_drawn_from_the_rollups(page: Page, platform: Platform, api: Api) -> None:
    api.topic("measured")
    database = EmbeddedPostgres(platform.data_dir / "postgres").url
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "insert into rollup_minute (at, node, topic, queue, subscription, in_per_s, out_per_s,"
            " messages_in, messages_out, bytes_in, bytes_out)"
            " select date_trunc('minute', now()) - n * interval '1 minute', 'a', 'measured', -1,"
            " '', 250, 240, 15000, 14400, 1500000, 1440000 from generate_series(1, 50) n"
        )
    page.goto(platform.url + "/topics/measured")
    history = page.get_by_label("History")
    history.get_by_text("1 h", exact=True).click()
    chart = history.get_by_role("figure", name="Messages of measured, 1 h")
    expect(chart).to_contain_text("250/s")
    expect(chart).to_contain_text("240/s")
    expect(chart.locator("canvas")).to_be_visible()
    history.get_by_label("Figure").click()
    page.get_by_role("option", name="Bytes", exact=True).click()
    expect(history.get_by_role("figure", name="Bytes of measured, 1 h")).to_contain_text("KiB/s")
