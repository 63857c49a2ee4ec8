"""The tasks of a user of the page, on a real platform."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

import tidecast.sync
from tests.conftest import Eventually
from tests.e2e.conftest import (
    PASSWORD,
    Api,
    Platform,
    another_engine,
    create_subscription,
    figure,
    sign_in,
)
from tests.e2e.traffic import consuming, publishing
from tests.support.ports import free_port
from tidecast.cli.messages.pub import url_of
from tidecast.errors import AuthError

TRAFFIC = re.compile(r"^[1-9]")
NOTHING = re.compile(r"^0 ?msg$")
HUNDREDS = re.compile(r"^([3-9]\d\d|\d[\d.]*k) ?msg$")
YAML = """kind: topic
metadata: {name: shop.orders, labels: {team: shop}}
spec: {mode: durable, queues: 2}
---
kind: subscription
metadata: {name: shop-billing}
spec: {topic: shop.orders}
"""


def make_topic(page: Page, platform: Platform, name: str) -> None:
    page.goto(platform.url + "/topics?create=true")
    page.get_by_label("Name", exact=True).fill(name)
    preview = page.get_by_label("Preview")
    expect(preview).to_contain_text("create")
    page.get_by_role("button", name="Create topic", exact=True).last.click()
    expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()


def test_from_first_run_to_first_message(page: Page, platform: Platform) -> None:
    make_topic(page, platform, "hello.world")
    page.goto(platform.url + "/messages?topic=hello.world&view=tail")
    expect(page.get_by_text("Listening")).to_be_visible()
    sender = page.context.new_page()
    sender.goto(platform.url + "/messages?topic=hello.world&view=publish")
    sender.get_by_label("Payload", exact=True).fill('{"greeting": "first message"}')
    sender.get_by_label("Key", exact=True).fill("web-1")

    sender.get_by_role("button", name="Publish", exact=True).click()
    expect(sender.get_by_role("status").filter(has_text="Published by")).to_be_visible()
    # The page said that it listens: then one message is enough.
    page.get_by_role("row", name=re.compile("first message")).click()
    expect(page.get_by_role("dialog")).to_contain_text('"greeting": "first message"')
    expect(page.get_by_role("dialog")).to_contain_text("web-1")
    sender.close()


@pytest.mark.usefixtures("home")
def test_example_traffic_by_one_click_and_a_limit_that_the_wire_follows(
    page: Page, platform: Platform
) -> None:
    page.keyboard.press("Control+k")
    page.get_by_placeholder("A topic, a page, an action").fill("example traffic")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Stop example traffic")).to_be_visible()
    busiest = page.get_by_label("Busiest topics").get_by_role("link").first
    expect(busiest).to_be_visible()
    name = busiest.locator("span").first.inner_text()
    page.goto(f"{platform.url}/topics/{name}")
    sent = page.get_by_test_id("stat-Sent")
    expect(sent).to_have_text(TRAFFIC)
    limit = page.get_by_label("Packets/s, as text")
    limit.fill("20")
    limit.press("Enter")
    expect(page.get_by_text("applied", exact=True)).to_be_visible()
    expect(page.get_by_label("Rate limits").get_by_text("set here")).to_be_visible()
    # On the wire: what is sent falls to the limit.
    expect(sent).to_have_text(re.compile(r"^(1\d|2[0-2])(\.\d+)? ?pkt/s$"), timeout=10_000)
    slider = page.get_by_role("slider", name="Packets/s")
    slider.focus()
    page.keyboard.press("Home")
    expect(limit).to_have_value("no limit")
    page.goto(platform.url + "/")
    page.get_by_role("button", name="Stop example traffic").click()
    expect(page.get_by_role("button", name="Stop example traffic")).to_have_count(0)
    expect(page.get_by_label("First steps"), "a platform with topics").to_have_count(0)


def test_lag_rises_with_a_slow_consumer_and_falls_and_a_pause_holds_it(
    page: Page, platform: Platform, api: Api
) -> None:
    api.topic("orders.eu", mode="durable", queues=2)
    create_subscription(page, platform, "orders.eu", "billing")
    state = page.get_by_role("main").get_by_test_id("subscription-state")
    with (
        publishing(platform.data_dir, "orders.eu", 400) as source,
        consuming(platform.data_dir, "orders.eu", "billing", slow_per_s=20) as consumer,
    ):
        expect(figure(page, "Lag")).to_have_text(HUNDREDS)
        expect(page.get_by_text("lag grows by")).to_be_visible()
        consumer.fast.set()
        expect(figure(page, "Lag")).not_to_have_text(HUNDREDS)
        page.get_by_role("button", name="Pause", exact=True).click()
        expect(state).to_have_text("paused")
        # What was fetched is still settled; then nothing more comes, while publishing continues.
        expect(figure(page, "Lag")).to_have_text(HUNDREDS)
        held, published = consumer.done, source.done
        expect(figure(page, "Delivered")).to_have_text(re.compile(r"^0 ?msg/s$"))
        page.get_by_role("button", name="Resume", exact=True).click()
        expect(state).not_to_have_text("paused")
        expect(figure(page, "Lag")).not_to_have_text(HUNDREDS)
        assert source.done > published
        assert consumer.done > held
        positions = page.get_by_label("Positions").get_by_role("row")
        expect(positions).to_have_count(3)  # a head, two queues
        source.stopping.set()
        expect(figure(page, "Lag")).to_have_text(NOTHING)
    assert consumer.done == source.done, "each message once: nothing lost, nothing twice"


@pytest.mark.usefixtures("home")
def test_yaml_is_planned_applied_and_exported(page: Page, api: Api) -> None:
    page.keyboard.press("y")
    dialog = page.get_by_role("dialog", name="YAML")
    apply = dialog.get_by_role("button", name="Apply", exact=True)
    expect(apply).to_be_disabled()
    documents = dialog.get_by_label("Documents")
    documents.fill("kind: topic\nmetadata: {name: x}\nspec: {mode: wrong}\n")
    dialog.get_by_role("button", name="Plan").click()
    expect(dialog.get_by_role("alert")).to_contain_text("mode")
    documents.fill(YAML)
    dialog.get_by_role("button", name="Plan").click()
    plan = dialog.get_by_role("region", name="Plan")
    expect(plan).to_contain_text("2 created")
    expect(plan).to_contain_text("shop.orders")
    listed = api.ask("GET", "/topics?q=shop.")["items"]
    assert not listed, "a plan changes nothing"
    apply.click()
    expect(page.get_by_text("Applied: 2 created")).to_be_visible()
    page.keyboard.press("y")
    dialog.get_by_role("tab", name="Export").click()
    expect(dialog.get_by_role("region", name="Export")).to_contain_text("shop-billing")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_keys_and_denial(
    page: Page, platform: Platform, browser: Browser, eventually: Eventually
) -> None:
    page.goto(platform.url + "/access")
    page.get_by_role("button", name="Create key").first.click()
    page.get_by_label("Name", exact=True).fill("reader")
    page.get_by_label("Topic pattern").fill(">")
    page.get_by_role("dialog").get_by_role("button", name="Create key").click()
    secret = page.get_by_test_id("key-secret").locator("code").first.inner_text()
    page.keyboard.press("Escape")
    asked = page.get_by_role("alert").filter(has_text="cannot be shown again")
    asked.get_by_role("button", name="Not yet").click()
    expect(page.get_by_test_id("key-secret")).to_contain_text(secret)
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_text("reader", exact=True)).to_be_visible()
    bearer = {"Authorization": f"Bearer {secret}"}
    # A context of its own: no cookie of the admin goes along.
    outside = browser.new_context(extra_http_headers=bearer)
    answer = outside.request.get(platform.url + "/api/v1/topics")
    assert answer.status == 200, answer.text()
    denied = outside.request.put(platform.url + "/api/v1/topics/no.way", data={"spec": {}})
    assert denied.status == 403, denied.text()
    outside.close()

    def is_audited() -> bool:  # denials are gathered for a second
        page.goto(platform.url + "/audit?outcome=denied")
        expect(page.get_by_role("heading", name="Audit")).to_be_visible()
        expect(page.get_by_role("row").nth(1).or_(page.get_by_text("No entry"))).to_be_visible()
        return page.get_by_role("row", name=re.compile("denied.*reader")).count() > 0

    eventually(is_audited, "the denial in the audit", timeout_s=20)
    page.goto(platform.url + "/access")
    page.get_by_role("button", name="Revoke").first.click()
    page.get_by_label(re.compile("Type reader")).fill("reader")
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(page.get_by_text("revoked", exact=True)).to_be_visible()


def test_a_viewer_sees_and_changes_nothing(
    page: Page, platform: Platform, browser: Browser
) -> None:
    make_topic(page, platform, "seen.only")
    page.goto(platform.url + "/access?tab=users")
    page.get_by_role("button", name="Add user").click()
    page.get_by_label("User", exact=True).fill("guest")
    page.get_by_label("First password").fill("guest password")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("guest", exact=True)).to_be_visible()
    guest = browser.new_context()
    other = guest.new_page()
    sign_in(other, platform.url, "guest", "guest password")
    other.get_by_label("New password").fill(PASSWORD)
    other.get_by_label("Once more").fill(PASSWORD)
    other.get_by_role("button", name="Set the password").click()
    other.get_by_role("heading", name="Overview", level=1).wait_for()
    for place in ("Keys & users", "Audit"):
        expect(other.get_by_role("link", name=place)).to_have_count(0)
    other.goto(platform.url + "/topics/seen.only")
    expect(other.get_by_role("heading", level=1, name="seen.only")).to_be_visible()
    expect(other.get_by_role("button", name="Edit")).to_have_count(0)
    expect(other.get_by_role("tab", name="Danger zone")).to_have_count(0)
    guest.close()


def test_deleting_asks_for_the_name(page: Page, platform: Platform) -> None:
    make_topic(page, platform, "short.lived")
    page.get_by_role("tab", name="Danger zone").click()
    page.get_by_role("button", name="Delete").click()
    sure = page.get_by_role("dialog").get_by_role("button", name="Delete for good")
    expect(sure).to_be_disabled()
    page.get_by_label("Type short.lived to confirm").fill("short.lived")
    sure.click()
    expect(page.get_by_role("heading", level=1, name="Topics")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("short.lived"))).to_have_count(0)


def test_keyboard_only(page: Page, platform: Platform) -> None:
    make_topic(page, platform, "by.keyboard")
    page.goto(platform.url + "/")
    page.get_by_role("heading", level=1, name="Overview").wait_for()
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", level=1, name="Topics")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("by.key")
    expect(page).to_have_url(re.compile("q=by.key"))
    row = page.get_by_role("row", name=re.compile("by.keyboard"))
    expect(row).to_be_visible()
    row.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="by.keyboard")).to_be_visible()
    page.keyboard.press("Control+k")
    page.get_by_placeholder("A topic, a page, an action").wait_for()
    page.keyboard.type("go to nodes")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="Nodes")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.usefixtures("home")
def test_dark_light_and_time_zone(page: Page) -> None:
    html = page.locator("html")
    expect(html).to_have_attribute("data-theme", "dark")
    page.keyboard.press("d")
    expect(html).to_have_attribute("data-theme", "light")
    page.reload()
    expect(html).to_have_attribute("data-theme", "light")
    page.get_by_test_id("live-badge").wait_for()
    page.keyboard.press("d")
    expect(html).to_have_attribute("data-theme", "dark")
    zone = page.get_by_test_id("zone")
    before = zone.inner_text()
    zone.click()
    expect(zone).not_to_have_text(before)
    zone.click()


@pytest.mark.usefixtures("home")
def test_stale_figures_are_said_to_be(page: Page, admin: BrowserContext) -> None:
    badge = page.get_by_test_id("live-badge")
    expect(badge).to_have_attribute("data-link", "live")
    admin.set_offline(True)
    try:
        page.evaluate("window.dispatchEvent(new Event('offline'))")
        expect(badge).not_to_have_attribute("data-link", "live", timeout=10_000)
        expect(badge).to_contain_text("old")
    finally:
        admin.set_offline(False)
    expect(badge).to_have_attribute("data-link", "live", timeout=10_000)


@pytest.fixture(scope="module")
def feeder(platform: Platform, api: Api) -> Iterator[tuple[Path, str]]:
    """The data directory of an engine whose adapter waits for a broker, and the broker's address.

    Its local clients need keys.
    """
    away = f"127.0.0.1:{free_port()}"
    options = ("--adapter", f"feed.away=kafka://{away}/orders")
    topology = "node: {local_keys: true}"
    with another_engine(platform, api, "feeder", topology, *options) as (data_dir, _):
        yield data_dir, away


def test_refused_requests_are_shown_at_their_key(
    page: Page, platform: Platform, api: Api, feeder: tuple[Path, str], eventually: Eventually
) -> None:
    scopes = [{"pattern": "narrow.>", "rights": ["publish"]}]
    secret = api.ask("POST", "/keys", {"name": "narrow", "scopes": scopes})["secret"]
    page.goto(platform.url + "/access")
    row = page.get_by_role("row", name=re.compile("^narrow"))
    expect(row.get_by_text("none", exact=True)).to_be_visible()
    url = url_of(feeder[0])

    def is_known() -> bool:
        try:
            tidecast.sync.connect(url, token=secret).close()
        except AuthError:
            return False
        return True

    eventually(is_known, "the key at the engine", timeout_s=20)
    with (
        tidecast.sync.connect(url, token=secret) as client,
        pytest.raises(AuthError, match="publish"),
    ):
        client.publisher("wide")
    expect(row).to_contain_text("1 denied")


def test_a_topic_whose_adapter_waits_shows_why(
    page: Page, platform: Platform, feeder: tuple[Path, str]
) -> None:
    page.goto(platform.url + "/topics?q=feed.away")
    row = page.get_by_role("row", name=re.compile("feed.away"))
    expect(row.get_by_text("waiting", exact=True)).to_be_visible()
    row.click()
    expect(page.get_by_role("heading", level=1, name="feed.away")).to_be_visible()
    expect(page.get_by_role("note")).to_contain_text("waiting: ")
    expect(page.get_by_role("note")).to_contain_text(feeder[1])
