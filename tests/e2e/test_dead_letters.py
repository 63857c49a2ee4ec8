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
