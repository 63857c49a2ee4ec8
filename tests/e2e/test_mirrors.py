"""Mirrors, as a person sees them: created in the form, copied from Kafka and NATS, paused."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import Api, Platform
from tests.support import nats_server
from tests.support.kafka_brokers import Brokers, brokers, missing

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
RECORDS = 400
LARGE = 65_507
"""Bytes of a header that NATS just takes, and with its name are too many for a record."""
BEGIN_MS = 240_000
"""A process begins: beside other work it takes a while."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[Brokers]:
    with brokers() as made:
        made.create("sales", 1)
        made.fill("sales", [b"%d" % i for i in range(RECORDS)])
        yield made


@pytest.mark.skipif(bool(missing()), reason=missing() or "brokers")
def test_a_mirror_is_made_followed_paused_edited_and_deleted(
    page: Page, platform: Platform, api: Api, kafka: Brokers
) -> None:
    api.topic("mirrored", mode="durable", fsync_interval_ms=2)
    page.goto(platform.url + "/mirrors")
    page.get_by_role("button", name="Create mirror").first.click()
    form = page.get_by_role("dialog")
    form.get_by_label("Name", exact=True).fill("sales")
    form.get_by_label("Topic", exact=True).fill("mirrored")
    form.get_by_label("Servers", exact=True).fill("nowhere")
    form.get_by_label("Kafka topic").fill("sales")
    expect(form.get_by_text("HOST:PORT, separated by commas").first).to_be_visible()
    expect(form.get_by_role("button", name="Create", exact=True)).to_be_disabled()
    form.get_by_label("Servers", exact=True).fill(kafka.sasl)
    form.get_by_label("User", exact=True).fill("shop")
    form.get_by_label("Secret").fill("shop secret")
    form.get_by_label("Login by").click()
    page.get_by_role("option", name="PLAIN").click()
    form.get_by_role("button", name="Create", exact=True).click()

    progress = page.get_by_role("region", name="Progress of sales")
    expect(progress.get_by_test_id("mirror-records")).to_have_text(
        f"{RECORDS} copied", timeout=BEGIN_MS
    )
    expect(progress.get_by_test_id("mirror-lag")).to_have_text("0 to copy")
    expect(progress.get_by_role("table", name="Queues")).to_contain_text(str(RECORDS))
    expect(progress.get_by_label("Rate of sales")).to_be_visible()
    row = page.get_by_role("row", name=re.compile("sales"))
    expect(row.first).to_contain_text("running")
    kafka.fill("sales", [b"more"] * 5)
    expect(progress.get_by_test_id("mirror-records")).to_have_text(
        f"{RECORDS + 5} copied", timeout=BEGIN_MS
    )
    shown = api.ask("GET", "/mirrors/sales")["spec"]["secret"]
    assert re.fullmatch(r"\*{8}-[0-9a-f]{12}", shown)

    page.get_by_role("button", name="Pause sales").click()
    expect(page.get_by_text("sales is paused")).to_be_visible()
    kafka.fill("sales", [b"later"] * 3)
    page.get_by_role("button", name="Edit sales").click()
    form = page.get_by_role("dialog", name="Edit sales")
    form.get_by_label("Records/s").fill("1000")
    form.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("sales is saved")).to_be_visible()
    page.get_by_role("button", name="Resume sales").click()
    expect(progress.get_by_test_id("mirror-records")).to_have_text(
        f"{RECORDS + 8} copied", timeout=BEGIN_MS
    )
    found = api.ask("GET", "/mirrors/sales")
    assert (found["spec"]["rate"], found["spec"]["secret"]) == (1000, shown)

    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    progress.get_by_role("button", name="Copy as").click()
    page.get_by_role("menuitem", name="tidecast").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == f"tidecast mirror show sales --control {platform.url}"
    api.ask("DELETE", "/mirrors/sales")
    expect(page.get_by_text("No mirror yet")).to_be_visible()


@pytest.mark.skipif(bool(nats_server.missing()), reason=nats_server.missing() or "a server")
def test_a_mirror_from_jetstream_is_made_in_the_form_and_says_what_it_left_out(
    page: Page, platform: Platform, api: Api
) -> None:
    api.topic("streamed", mode="durable", fsync_interval_ms=2)
    with nats_server.nats_server() as nats:
        nats.create("SHOP", ["shop.>"])
        nats.fill("shop.a", [b"%d" % i for i in range(RECORDS)])
        nats.fill("shop.b", [b"large"], {"nats-subject": "v" * LARGE})
        nats.fill("shop.c", [b"last"])
        page.goto(platform.url + "/mirrors")
        page.get_by_role("button", name="Create mirror").first.click()
        form = page.get_by_role("dialog")
        form.get_by_label("Name", exact=True).fill("shop")
        form.get_by_label("Direction").click()
        page.get_by_role("option", name="From JetStream to a topic").click()
        expect(form.get_by_label("Kafka topic")).to_have_count(0)
        form.get_by_label("Topic", exact=True).fill("streamed")
        form.get_by_label("Servers", exact=True).fill(nats.address)
        expect(form.get_by_role("button", name="Create", exact=True)).to_be_disabled()
        form.get_by_label("Streams", exact=True).fill("SHOP")
        form.get_by_role("button", name="Create", exact=True).click()

        progress = page.get_by_role("region", name="Progress of shop")
        expect(progress.get_by_test_id("mirror-records")).to_have_text(
            f"{RECORDS + 1} copied", timeout=BEGIN_MS
        )
        expect(progress.get_by_test_id("mirror-lag")).to_have_text("0 to copy")
        expect(progress.get_by_text("1 left out")).to_be_visible()
        expect(progress.get_by_text("RecordsLeftOut")).to_be_visible()
        expect(progress.get_by_text("jetstream:SHOP → streamed")).to_be_visible()
        nats.fill("shop.a", [b"more"] * 5)
        expect(progress.get_by_test_id("mirror-records")).to_have_text(
            f"{RECORDS + 6} copied", timeout=BEGIN_MS
        )
        found = api.ask("GET", "/mirrors/shop")
        assert (found["spec"]["streams"], found["status"]["left_out"]) == ("SHOP", "1")
        api.ask("DELETE", "/mirrors/shop")
        expect(page.get_by_text("No mirror yet")).to_be_visible()
