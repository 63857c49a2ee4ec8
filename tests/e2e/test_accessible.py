"""axe on every page, in both themes: WCAG 2.2 AA, contrast included.

The frame around the pages is the same everywhere: it is looked at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.e2e.conftest import Platform
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
    "/pipelines": "Pipelines",
    "/access": "Keys & users",
    "/audit": "Audit",
    "/alerts": "Alerts",
}
RUN = """async () => {
  const tags = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa"];
  const found = await axe.run(PART, { runOnly: tags });
  return found.violations.map((v) => `${v.id}: ${v.nodes.map((n) => n.html).join(" | ")}`);
}"""


@pytest.fixture(scope="module")
def page(admin: BrowserContext) -> Iterator[Page]:
    """One for all: opening one costs more than looking at it."""
    page = admin.new_page()
    yield page
    page.close()


@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_nothing(page: Page, platform: Platform, path: str) -> None:
    page.goto(platform.url + path)
    page.get_by_role("heading", level=1, name=PAGES[path]).wait_for()
    page.wait_for_load_state("networkidle")
    page.evaluate(AXE.read_text("utf-8"))
    part = "document" if path == "/" else "document.querySelector('main')"
    for theme in ("dark", "light"):
        page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        found: list[Any] = page.evaluate(RUN.replace("PART", part))
        assert not found, f"{theme}: {found}"
