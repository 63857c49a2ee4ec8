"""Ten thousand topics in the list, and how long a change takes to be on the screen."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable

import psycopg
import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import inspect

from tests.conftest import Eventually
from tests.e2e.conftest import Api, Platform
from tests.e2e.traffic import publishing
from tidecast_control.kit.models import ResourceRow
from tidecast_control.postgres import EmbeddedPostgres

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
TOPICS = 10_000
ROWS_IN_PAGE_MAX = 80
UPDATE_MS_MAX = 500.0
ROUNDS = 20

GIVEN = ", ".join(c.name for c in inspect(ResourceRow).columns if c.computed is None)
MANY = f"""insert into resources ({GIVEN}) select {GIVEN} from (
    select (jsonb_populate_record(r, jsonb_build_object(
        'uid', gen_random_uuid()::text, 'name', 'many.t' || lpad(n::text, 5, '0'),
        'number', 20000 + n
    ))).* from resources r, generate_series(0, %(count)s - 1) n
    where r.kind = 'topic' and r.name = 'many.base') made"""
"""Rows as `apply` would write them; no engine is told, for the list is the service's."""

WATCH = """() => {
  const figure = document.querySelector('[data-testid="stat-Sent"]');
  window.changes = [];
  new MutationObserver(() => {
    const text = figure.textContent;
    requestAnimationFrame(() => requestAnimationFrame(() =>
      window.changes.push([performance.timeOrigin + performance.now(), text])));
  }).observe(figure, { childList: true, characterData: true, subtree: true });
}"""

SHOWN = """() => {
  const change = window.changes.find(([, text]) => !/^0 ?pkt/.test(text));
  return change ? change[0] : null;
}"""


def test_from_the_publisher_to_pixels(
    page: Page,
    platform: Platform,
    api: Api,
    eventually: Eventually,
    record_property: Callable[[str, object], None],
) -> None:
    """From the first message of a burst until the frame that shows it has been painted."""
    api.topic("bursts")
    eventually(lambda: api.settled("/topics/bursts"), "the topic on the engine", timeout_s=20)
    page.goto(platform.url + "/topics/bursts")
    sent = page.get_by_test_id("stat-Sent")
    with publishing(platform.data_dir, "bursts", 100, gate=True) as source:
        assert source.ready.wait(30), "no publisher: its first start is not what is measured"
        expect(sent).to_have_text(re.compile(r"^0 ?pkt/s$"))
        page.evaluate(WATCH)
        took_ms = []
        for _ in range(ROUNDS):
            page.evaluate("() => { window.changes = []; }")
            began_s = time.time()
            source.fast.set()
            # Not `wait_for_function`: the page's policy forbids to evaluate text.
            eventually(lambda: page.evaluate(SHOWN) is not None, "the burst on the screen")
            shown_ms = page.evaluate(SHOWN)
            took_ms.append(shown_ms - began_s * 1000)
            source.fast.clear()
            expect(sent).to_have_text(re.compile(r"^0 ?pkt/s$"))
    told = f"update to pixels: {sorted(round(ms) for ms in took_ms)} ms"
    record_property("update_to_pixels_ms", told)
    assert statistics.quantiles(took_ms, n=10)[-1] < UPDATE_MS_MAX, told


def test_ten_thousand_topics_are_a_list_one_can_use(
    page: Page, platform: Platform, api: Api
) -> None:
    api.topic("many.base")
    with psycopg.connect(EmbeddedPostgres(platform.data_dir / "postgres").url) as connection:
        connection.execute(MANY, {"count": TOPICS})
    began_s = time.monotonic()
    page.goto(platform.url + "/topics")
    table = page.get_by_role("table", name="Topics")
    expect(table.get_by_role("row").nth(5)).to_be_visible()
    opened_s = time.monotonic() - began_s
    assert opened_s < 5.0, f"the list opened in {opened_s:.1f} s"
    assert int(table.get_attribute("aria-rowcount") or 0) > TOPICS
    assert table.get_by_role("row").count() < ROWS_IN_PAGE_MAX

    # By keyboard to the end of what is loaded, again and again: more is loaded as one goes.
    row = table.get_by_role("row").nth(2)
    row.focus()
    for _ in range(3):
        page.keyboard.press("End")
        page.wait_for_load_state("networkidle")
    expect(page.locator("[data-index='300']").or_(page.locator(":focus"))).to_be_visible()
    assert table.get_by_role("row").count() < ROWS_IN_PAGE_MAX

    # Frames while scrolling far: the list is drawn again each time, and none may take long.
    slowest_ms = page.evaluate("""async () => {
      const box = document.querySelector('[role="table"]');
      let slowest = 0, last = performance.now();
      for (let step = 0; step < 60; step += 1) {
        box.scrollTop = (step % 2 ? 0 : 1) * box.scrollHeight * Math.random();
        await new Promise(requestAnimationFrame);
        const now = performance.now();
        slowest = Math.max(slowest, now - last);
        last = now;
      }
      return slowest;
    }""")
    assert slowest_ms < 500, f"a frame took {slowest_ms:.0f} ms"

    began_s = time.monotonic()
    page.get_by_label("Search topics").fill("t09999")
    expect(table.get_by_role("row", name=re.compile("many.t09999"))).to_be_visible()
    found_s = time.monotonic() - began_s
    assert found_s < 2.0, f"it was found in {found_s:.1f} s"
    expect(page.get_by_text("1 topic match")).to_be_visible()
