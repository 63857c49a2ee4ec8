"""axe on every page, in both themes: WCAG 2.2 AA, contrast included.

The frame around the pages is the same everywhere: it is looked at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.e2e.conftest import Api, Platform
from tests.project import ROOT

AXE = ROOT / "frontend/node_modules/axe-core/axe.min.js"
PAGES = {
    "/": "Overview",
    "/flow?view=table": "Flow",
    "/reliability": "Reliability",
    "/topics": "Topics",
    "/subscriptions": "Subscriptions",
    "/messages": "Messages",
    "/limits": "Rate limits",
    "/nodes": "Nodes",
    "/cluster": "Cluster",
    "/pipelines": "Pipelines",
    "/mirrors": "Mirrors",
    "/access": "Keys & users",
    "/audit": "Audit",
    "/alerts": "Alerts",
}
RUN = """async () => {
  const tags = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa"];
  const found = await axe.run(PART, { runOnly: tags });
  return found.violations.map((v) => `${v.id}: ${v.nodes.map((n) => n.html).join(" | ")}`);
}"""


OPENED = {
    "/topics?create=true": "Create a topic",
    "/subscriptions?create=true": "Create a subscription",
    "/limits?create=true": "Create a policy",
    "/alerts?tab=rules&create=true": "Create a rule",
    "/pipelines?create=true": "Create a pipeline",
    "/mirrors?create=true": "Create a mirror",
    "/access?tab=keys&create=true": "Create an API key",
    "/access?tab=users&create=true": "Add a user",
}
"""Dialogs that an address opens, by their names."""
ALWAYS = ("/topics?create=true", "/access?tab=keys&create=true")
"""A resource, and a secret that is shown once. The long tests look at the others."""
OFTEN = ("/", "/topics", "/messages", "/access")
"""The frame with charts, a table, payloads, tabs with forms. The long tests look at the others."""


@pytest.fixture(scope="module")
def page(admin: BrowserContext) -> Iterator[Page]:
    """One for all: opening one costs more than looking at it."""
    page = admin.new_page()
    yield page
    page.close()


@pytest.mark.parametrize(
    "path",
    [path if path in OFTEN else pytest.param(path, marks=pytest.mark.long) for path in PAGES],
)
def test_axe_finds_nothing(page: Page, platform: Platform, path: str) -> None:
    page.goto(platform.url + path)
    page.get_by_role("heading", level=1, name=PAGES[path]).wait_for()
    part = "document" if path == "/" else "document.querySelector('main')"
    look(page, part)


@pytest.mark.parametrize(
    "path",
    [path if path in ALWAYS else pytest.param(path, marks=pytest.mark.long) for path in OPENED],
)
def test_axe_finds_nothing_in_a_dialog(page: Page, platform: Platform, path: str) -> None:
    page.goto(platform.url + path)
    page.get_by_role("dialog", name=OPENED[path]).wait_for()
    look(page, "document.querySelector('[role=dialog]')")


@pytest.mark.parametrize(
    "path",
    ["/topics/seen.by.axe", pytest.param("/subscriptions/seen-by-axe", marks=pytest.mark.long)],
)
def test_axe_finds_nothing_on_a_resource_and_in_its_editor(
    page: Page, platform: Platform, api: Api, path: str
) -> None:
    api.topic("seen.by.axe", mode="durable", queues=2)
    api.ask("PUT", "/subscriptions/seen-by-axe", {"spec": {"topic": "seen.by.axe"}})
    page.goto(platform.url + path)
    page.get_by_role("button", name="Edit", exact=True).wait_for()
    look(page, "document.querySelector('main')")
    page.get_by_role("button", name="Edit", exact=True).click()
    page.get_by_role("dialog").get_by_label("Owner", exact=True).fill("somebody else")
    page.get_by_role("dialog").get_by_label("Preview").wait_for()
    look(page, "document.querySelector('[role=dialog]')")


def look(page: Page, part: str) -> None:
    """Ask axe about a part of the page, in both themes."""
    page.wait_for_load_state("networkidle")
    page.evaluate(AXE.read_text("utf-8"))
    for theme in ("dark", "light"):
        page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        found: list[Any] = page.evaluate(RUN.replace("PART", part))
        assert not found, f"{theme}: {found}"


def test_nothing_moves_where_motion_is_reduced(page: Page, platform: Platform) -> None:
    """An animation without end also draws each frame: it took half a core without a GPU."""
    page.goto(platform.url + "/")
    expect(page.get_by_test_id("live-badge")).to_have_attribute("data-link", "live")
    moving = "document.getAnimations().filter((one) => one.playState === 'running').length"
    page.wait_for_function(f"() => {moving} === 0", timeout=10_000)
