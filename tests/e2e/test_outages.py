"""The page while a part of the platform is away: it names the part, and recovers by itself."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, Route, WebSocketRoute, expect

from tests.e2e.conftest import Api, Platform

RECONNECT_MS = 20_000


def test_a_database_that_is_away_is_said_and_nothing_can_be_saved(
    page: Page, platform: Platform, api: Api
) -> None:
    api.topic("outages.topic")
    page.goto(platform.url + "/topics/outages.topic")
    page.get_by_role("button", name="Edit", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Owner", exact=True).fill("somebody")
    save = dialog.get_by_role("button", name="Save", exact=True)
    expect(save).to_be_enabled()

    def away(route: Route) -> None:
        route.fulfill(
            status=503, json={"ok": False, "checks": {"process": "ok", "postgres": "no answer"}}
        )

    page.route("**/health/ready", away)
    expect(page.get_by_text("Database unreachable.")).to_be_visible()
    expect(save).to_be_disabled()
    page.unroute("**/health/ready")
    expect(page.get_by_text("Database unreachable.")).to_have_count(0)
    expect(save).to_be_enabled()


@pytest.mark.long
def test_a_tab_recovers_from_a_socket_that_stays_open_and_says_nothing(
    page: Page, platform: Platform
) -> None:
    sockets: list[WebSocketRoute] = []
    silent = True

    def between(socket: WebSocketRoute) -> None:
        sockets.append(socket)
        server = socket.connect_to_server()
        mine = len(sockets)
        server.on_message(lambda text: None if mine == 1 and silent else socket.send(text))

    page.route_web_socket("**/api/v1/live", between)
    page.goto(platform.url + "/")
    badge = page.get_by_test_id("live-badge")
    expect(badge).not_to_have_attribute("data-link", "live")
    expect(badge).to_have_attribute("data-link", "live", timeout=RECONNECT_MS)
    assert len(sockets) > 1


def test_figures_that_are_old_are_greyed(page: Page, platform: Platform) -> None:
    page.goto(platform.url + "/")
    badge = page.get_by_test_id("live-badge")
    expect(badge).to_have_attribute("data-link", "live")
    main = page.locator("main")
    expect(main).to_have_attribute("data-fresh", "true")
    page.context.set_offline(True)
    try:
        expect(main).to_have_attribute("data-fresh", "false")
        figure = main.get_by_test_id("stat-Published")
        assert float(figure.evaluate("one => getComputedStyle(one).opacity")) < 1
    finally:
        page.context.set_offline(False)
    expect(main).to_have_attribute("data-fresh", "true", timeout=RECONNECT_MS)
