"""Scheduled messages, as a person sees them: published with a time, listed, cancelled."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, expect

import tidecast.sync
from tests.conftest import Eventually
from tests.e2e.conftest import Api, Platform

pytestmark = [pytest.mark.long]


def test_a_message_is_scheduled_listed_and_cancelled(
    page: Page, platform: Platform, api: Api
) -> None:
    api.topic("reminders", mode="durable")
    api.ask("PUT", "/subscriptions/mails", {"spec": {"topic": "reminders"}})
    at = platform.url + "/messages?topic=reminders"
    page.goto(at + "&view=publish")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    for key in ("ada", "bob"):
        page.get_by_label("Key", exact=True).fill(key)
        page.get_by_label(re.compile("^Deliver at")).fill(tomorrow.strftime("%Y-%m-%dT%H:%M:%S"))
        page.get_by_role("button", name="Publish", exact=True).click()
        expect(page.get_by_role("status").filter(has_text="Published by")).to_be_visible()
    page.get_by_label(re.compile("^Deliver at")).fill(
        (tomorrow + timedelta(days=400)).strftime("%Y-%m-%dT%H:%M:%S")
    )
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.get_by_text("days ahead: at most 365").first).to_be_visible()

    page.goto(at + "&view=scheduled")
    expect(page.get_by_role("status").filter(has_text="2 messages scheduled")).to_be_visible()
    page.get_by_role("row", name=re.compile("ada")).click()
    dialog = page.get_by_role("dialog", name=re.compile("^Cancel the delivery of 0:"))
    expect(dialog).to_contain_text("mails")
    dialog.get_by_role("button", name="Cancel the delivery").click()
    expect(page.get_by_text("Cancelled for 1 subscription")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="1 message scheduled")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("bob"))).to_be_visible()
    left = api.ask("GET", "/topics/reminders/scheduled")["messages"]
    assert [one["key"] for one in left] == ["bob"]


def test_a_long_list_comes_in_pages(
    page: Page, platform: Platform, api: Api, eventually: Eventually
) -> None:
    """A page has 200 messages; the button More loads the next page, up to the end."""
    api.topic("later", mode="durable")
    api.ask("PUT", "/subscriptions/pages", {"spec": {"topic": "later"}})
    with tidecast.sync.connect(f"tidecast://{platform.data_dir}") as client:
        eventually(lambda: client.subscriptions.list("later"), "the subscription", timeout_s=30.0)
        keys = [f"key-{n:03}" for n in range(450)]
        client.publish_batch("later", [b"x"] * 450, keys=keys, deliver_in=3600, ack="durable")
    page.goto(platform.url + "/messages?topic=later&view=scheduled")
    status = page.get_by_role("status").filter(has_text="scheduled")
    expect(status).to_contain_text("The first 200 scheduled messages")
    more = page.get_by_role("button", name="More", exact=True)
    more.click()
    expect(status).to_contain_text("The first 400 scheduled messages")
    more.click()
    expect(status).to_contain_text("450 messages scheduled")
    expect(more).to_have_count(0)
