"""Two engines on one wire: loss is injected and repaired, a limit holds where it arrives."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Eventually
from tests.e2e.conftest import Api, Platform
from tests.e2e.traffic import publishing, reading

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]
SOME = re.compile(r"^[1-9]\d*(\.\d+)?k? ?pkt/s$")
NONE = re.compile(r"^0 ?pkt/s$")
RATE = 2_000


def test_a_second_node_shows_itself(page: Page, platform: Platform, second: Path) -> None:
    page.goto(platform.url + "/nodes")
    expect(page.get_by_text("up", exact=True)).to_have_count(2)
    page.goto(platform.url + "/")
    expect(page.get_by_test_id("stat-Nodes")).to_have_text(re.compile(r"2 ?/ 2"))


def test_injected_loss_is_repaired_and_seen(
    page: Page, platform: Platform, second: Path, api: Api, eventually: Eventually
) -> None:
    api.topic("lossy")
    name = api.ask("GET", "/topics/lossy")["spec"]["transport"] or "multicast"
    api.ask("PATCH", f"/transports/{name}", {"spec": {"allow_faults": True}})
    eventually(lambda: api.settled("/topics/lossy"), "the topic on both engines", timeout_s=20)
    page.goto(platform.url + "/reliability")
    missing, resent = page.get_by_test_id("stat-Missing"), page.get_by_test_id("stat-Resent")
    with (
        reading(second, "lossy") as sink,
        publishing(platform.data_dir, "lossy", RATE) as source,
    ):
        eventually(lambda: sink.done > 0, "the first message over there", timeout_s=30)
        missed = source.done - sink.done
        expect(missing).to_have_text(NONE)
        faults = page.get_by_label("Fault injection")
        faults.get_by_label("Drop, %").fill("20")
        faults.get_by_role("button", name="Inject loss for five minutes").click()
        expect(faults.get_by_text("active", exact=True)).to_be_visible()
        expect(missing).to_have_text(SOME)
        expect(resent).to_have_text(SOME)
        expect(page.get_by_test_id("stat-NAKs sent")).to_have_text(re.compile(r"^[1-9]"))
        faults.get_by_role("button", name="Stop").click()
        expect(faults.get_by_text("off", exact=True)).to_be_visible()
        expect(missing).to_have_text(NONE)
        expect(page.get_by_test_id("stat-Unrecoverable loss")).to_have_text(
            re.compile(r"^0 ?pkt/s$")
        )
        source.stopping.set()
        # What came before the first message that was seen may have gone by unseen; all else came.
        eventually(lambda: sink.done >= source.done - missed, "the last message", timeout_s=20)


def test_the_wire_follows_the_slider(
    page: Page, platform: Platform, second: Path, api: Api, eventually: Eventually
) -> None:
    """Measured by a reader on the other engine: what it gets has crossed the wire."""
    api.topic("metered", linger_us=0)
    eventually(lambda: api.settled("/topics/metered"), "the topic on both engines", timeout_s=20)
    page.goto(platform.url + "/topics/metered")
    limit = page.get_by_label("Packets/s, as text")

    def rate(seconds: float) -> float:
        began_s, before = time.monotonic(), sink.done
        sink.stopping.wait(seconds)
        return (sink.done - before) / (time.monotonic() - began_s)

    with (
        reading(second, "metered") as sink,
        publishing(platform.data_dir, "metered", 300, size=1_300) as source,
    ):
        eventually(lambda: sink.done > 100, "messages over there", timeout_s=30)
        assert rate(1.0) > 200
        limit.fill("50")
        limit.press("Enter")
        expect(page.get_by_text("applied", exact=True)).to_be_visible()
        share = page.get_by_text(re.compile(r"^rate limit \d"))  # of the time
        expect(share.first).to_be_visible()
        assert 30 < rate(2.0) < 75
        page.get_by_role("slider", name="Packets/s").focus()
        page.keyboard.press("Home")
        expect(limit).to_have_value("no limit")
        eventually(lambda: rate(0.5) > 200, "the old rate", timeout_s=15)
        source.stopping.set()
