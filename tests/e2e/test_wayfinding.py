"""Things are found by their names, and commands on the page reach this platform."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.conftest import Api, Platform


def _find(page: Page, text: str, kind: str) -> None:
    page.keyboard.press("Control+k")
    page.get_by_placeholder("A topic, a page, an action").fill(text)
    option = page.get_by_role("option").filter(has_text=text).filter(has_text=kind)
    expect(option).to_be_visible()
    option.click()


@pytest.mark.usefixtures("home")
def test_the_palette_finds_everything_that_has_a_name(
    page: Page, platform: Platform, api: Api
) -> None:
    api.ask("PUT", "/rate-limits/found-policy", {"spec": {"pattern": "nothing.at.all"}})
    api.ask("PUT", "/alert-rules/found-rule", {"spec": {"metric": "lag_s", "target": "nothing"}})
    api.ask("PUT", "/pipelines/found-pipeline", {"spec": {"job": "capacity"}})
    api.ask("PUT", "/users/found-user", {"role": "viewer", "password": "first password"})
    api.ask("POST", "/keys", {"name": "found-key", "role": "viewer", "scopes": []})
    for text, kind in (
        ("found-policy", "policy"),
        ("found-rule", "alert rule"),
        ("found-user", "user"),
    ):
        _find(page, text, kind)
        dialog = page.get_by_role("dialog", name=f"Edit {text}")
        expect(dialog).to_be_visible()
        dialog.get_by_role("button", name="Cancel").click()
        expect(dialog).to_have_count(0)
    _find(page, "found-pipeline", "pipeline")
    expect(page.get_by_label("Runs of found-pipeline").first).to_be_visible()
    _find(page, "found-key", "API key")
    expect(page.get_by_role("row", name="found-key")).to_be_visible()
    page.keyboard.press("Control+k")
    page.get_by_placeholder("A topic, a page, an action").fill("utc")
    expect(page.get_by_role("option")).to_have_count(1)
    page.get_by_placeholder("A topic, a page, an action").fill("no such thing")
    expect(page.get_by_role("dialog")).to_contain_text("matches “no such thing”")
    page.keyboard.press("Escape")
    for path in (
        "/rate-limits/found-policy",
        "/alert-rules/found-rule",
        "/pipelines/found-pipeline",
        "/users/found-user",
        "/keys/found-key",
    ):
        api.ask("DELETE", path)


def test_commands_name_this_platform(page: Page, platform: Platform, api: Api) -> None:
    api.topic("wayfinding.empty")
    page.goto(platform.url + "/messages?topic=wayfinding.empty&view=tail")
    expect(page.get_by_role("main")).to_contain_text(
        f"tidecast pub wayfinding.empty --message hello --data-dir {platform.data_dir}"
    )


def test_a_page_whose_script_has_not_run_says_that_it_loads(
    browser: Browser, platform: Platform
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(platform.url + "/topics")
    expect(page.get_by_role("status")).to_have_text("Loading Tidecast")
    context.close()


@pytest.mark.long
def test_every_page_fits_a_telephone(page: Page, platform: Platform, api: Api) -> None:
    api.topic("wayfinding.narrow", mode="durable", queues=2)
    api.ask("PUT", "/subscriptions/narrow", {"spec": {"topic": "wayfinding.narrow"}})
    page.set_viewport_size({"width": 390, "height": 844})
    too_wide = {}
    for path in (
        "/", "/flow", "/reliability", "/alerts", "/topics", "/topics/wayfinding.narrow",
        "/topics/wayfinding.narrow?tab=settings", "/subscriptions", "/subscriptions/narrow",
        "/messages?topic=wayfinding.narrow&view=browse", "/limits", "/nodes", "/cluster",
        "/pipelines", "/mirrors", "/access", "/audit",
    ):  # fmt: skip
        page.goto(platform.url + path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_label("Loading", exact=True)).to_have_count(0)
        width = page.evaluate(
            "Math.max(document.documentElement.scrollWidth,"
            " 390 - document.querySelector('main').clientWidth"
            " + document.querySelector('main').scrollWidth)"
        )
        if width > 390:
            too_wide[path] = width
    assert not too_wide
