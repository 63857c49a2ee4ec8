"""A durable topic with real producers and consumers: lag, pause and resume, dead letters."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect

from tests.e2e.conftest import Api, Platform
from tests.e2e.traffic import consuming, publishing, refusing

NOTHING = re.compile(r"^0 ?msg$")
HUNDREDS = re.compile(r"^([3-9]\d\d|\d[\d.]*k) ?msg$")


def figure(page: Page, label: str) -> Locator:
    """The figure under a label: `Lag` -> `1.2k msg`."""
    return page.locator("main").get_by_test_id(f"stat-{label}")


def create_subscription(
    page: Page, platform: Platform, topic: str, name: str, dead_letters: str = ""
) -> None:
    page.goto(platform.url + "/subscriptions")
    page.get_by_role("button", name="Create subscription").first.click()
    form = page.get_by_role("dialog")
    form.get_by_label("Name", exact=True).fill(name)
    form.get_by_label("Topic", exact=True).fill(topic)
    form.get_by_label("Dead letters to").fill(dead_letters)
    form.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()


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
        expect(page.get_by_label("grows").first).to_be_visible()
        consumer.fast.set()
        expect(figure(page, "Lag")).not_to_have_text(HUNDREDS)
        page.get_by_role("button", name="Pause", exact=True).click()
        expect(state).to_have_text("paused")
        # What was fetched is still settled; then nothing more comes, while publishing goes on.
        expect(figure(page, "Lag")).to_have_text(HUNDREDS)
        held, published = consumer.done, source.done
        expect(figure(page, "Delivered")).to_have_text(re.compile(r"^0 ?/s$"))
        page.get_by_role("button", name="Resume", exact=True).click()
        expect(state).not_to_have_text("paused")
        expect(figure(page, "Lag")).not_to_have_text(HUNDREDS)
        assert source.done > published
        assert consumer.done > held
        source.stopping.set()
        expect(figure(page, "Lag")).to_have_text(NOTHING)
    assert consumer.done == source.done, "each message once: nothing lost, nothing twice"


def test_dead_letters_are_driven_again(page: Page, platform: Platform, api: Api) -> None:
    api.topic("jobs", mode="durable")
    api.topic("jobs.dead", mode="durable")
    create_subscription(page, platform, "jobs", "workers", "jobs.dead")
    with refusing(platform.data_dir, "jobs", "workers") as worker:
        with publishing(platform.data_dir, "jobs", 50) as source:
            expect(figure(page, "Dead letters")).to_have_text(re.compile(r"^[1-9]\d*$"))
        expect(figure(page, "Lag")).to_have_text(NOTHING)
        expect(figure(page, "Dead letters")).to_have_text(str(source.done))
        worker.fast.set()
        page.get_by_role("button", name="Dead letters").click()
        dialog = page.get_by_role("dialog", name="Dead letters")
        dialog.get_by_role("button", name="Preview").click()
        preview = dialog.get_by_role("region", name="Preview")
        expect(preview).to_contain_text(re.compile(rf"records\s*{source.done}"))
        assert worker.done == 0, "a preview delivers nothing"
        dialog.get_by_role("button", name="Re-drive", exact=True).click()
        expect(page.get_by_text("Dead letters are on their way again")).to_be_visible()
        expect(dialog.get_by_role("region", name="Result")).to_contain_text("done")
        page.keyboard.press("Escape")
        expect(figure(page, "Outstanding")).to_have_text("0")
    assert worker.done == source.done
