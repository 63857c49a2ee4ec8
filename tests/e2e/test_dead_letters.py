"""Dead letters, as a person sees them: counted, previewed, driven again."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import Api, Platform, create_subscription, figure
from tests.e2e.traffic import publishing, refusing

pytestmark = [pytest.mark.long]
NOTHING = re.compile(r"^0 ?msg$")


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
        preview = dialog.get_by_role("region", name="Preview")
        expect(preview).to_contain_text(
            f"{source.done} messages will be published to their original"
        )
        redrive = dialog.get_by_role("button", name="Re-drive", exact=True)
        expect(redrive).to_be_enabled()
        for field, wrong in (("Filter", "nonsense((("), ("At most", "abc")):
            kept = dialog.get_by_label(field, exact=True).input_value()
            dialog.get_by_label(field, exact=True).fill(wrong)
            expect(preview).to_have_count(0)  # that of before is no preview of this
            expect(redrive).to_be_disabled()
            dialog.get_by_label(field, exact=True).fill(kept)
            expect(redrive).to_be_enabled()
        assert worker.done == 0, "a preview delivers nothing"
        redrive.click()
        expect(page.get_by_text("Dead letters are published again")).to_be_visible()
        expect(dialog.get_by_role("region", name="Result")).to_contain_text("were published to")
        page.keyboard.press("Escape")
        expect(figure(page, "Outstanding")).to_have_text("0")
        expect(figure(page, "Dead letters")).to_have_text("0")
    assert worker.done == source.done


def test_dead_letters_are_driven_to_another_topic(page: Page, platform: Platform, api: Api) -> None:
    for topic in ("mails", "mails.dead", "mails.later"):
        api.topic(topic, mode="durable")
    create_subscription(page, platform, "mails", "senders", "mails.dead")
    with refusing(platform.data_dir, "mails", "senders"):
        with publishing(platform.data_dir, "mails", 50) as source:
            expect(figure(page, "Dead letters")).to_have_text(re.compile(r"^[1-9]\d*$"))
        expect(figure(page, "Lag")).to_have_text(NOTHING)
        expect(figure(page, "Dead letters")).to_have_text(str(source.done))
    page.get_by_role("button", name="Dead letters").click()
    dialog = page.get_by_role("dialog", name="Dead letters")
    dialog.get_by_label("To topic").fill("mails.later")
    dialog.get_by_role("button", name="Re-drive", exact=True).click()
    expect(dialog.get_by_role("region", name="Result")).to_contain_text("were published to")
    # In the queue of the other topic, each once, and in none of the first.
    orders: list[int] = []
    place = "start=earliest"
    while place:
        found = api.ask("GET", f"/topics/mails.later/messages?limit=200&{place}")
        orders += [one["payload"]["value"]["order"] for one in found["messages"]]
        place = "" if found["complete"] else f"start=token&token={found['next_token']}"
    assert sorted(orders) == list(range(source.done))
    expect(figure(page, "Lag")).to_have_text(NOTHING)
