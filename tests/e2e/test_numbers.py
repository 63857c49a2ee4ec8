"""Numbers and times that the page sends are the ones that stand on it."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from tests.conftest import Eventually
from tests.e2e.conftest import PASSWORD, Api, Platform, sign_in
from tests.e2e.traffic import publishing

EXACT = '{"id": 12345678901234567890, "x": 1.0}'


@pytest.fixture
def new_york(browser: Browser, admin: object, platform: Platform) -> Iterator[Page]:
    """A browser that stands in New York, whose page shows UTC."""
    context = browser.new_context(timezone_id="America/New_York", reduced_motion="reduce")
    page = context.new_page()
    sign_in(page, platform.url, "admin", PASSWORD)
    page.get_by_role("heading", name="Overview", level=1).wait_for()
    page.keyboard.press("z")
    expect(page.get_by_test_id("zone")).to_have_text("UTC")
    yield page
    context.close()


def test_a_slider_sends_whole_numbers(page: Page, platform: Platform, api: Api) -> None:
    api.topic("numbers.slider")
    page.goto(platform.url + "/topics/numbers.slider")
    slider = page.get_by_role("slider", name="Packets/s")
    slider.focus()
    sent: list[int] = []
    for _ in range(8):
        with page.expect_response(lambda one: one.request.method == "PATCH") as answer:
            page.keyboard.press("PageUp")
        body = answer.value.request.post_data_json
        assert answer.value.ok, f"{body}: {answer.value.text()}"
        assert body is not None
        sent.append(int(body["spec"]["rate_packets_per_s"]))
    # Below ten packets a second a step was a fraction.
    assert sent[:3] == [1, 2, 3]
    assert sent == sorted(set(sent)), "each press is another limit"
    assert api.ask("GET", "/topics/numbers.slider")["spec"]["rate_packets_per_s"] == sent[-1]


def test_a_limit_that_was_only_looked_at_stays(page: Page, platform: Platform, api: Api) -> None:
    api.topic("numbers.limit", rate_bytes_per_s=10_000_000)
    page.goto(platform.url + "/topics/numbers.limit")
    field = page.get_by_label("Bytes/s, as text")
    expect(field).to_have_value("10,000,000")
    field.fill("10,000,000 ")
    field.blur()
    field.fill("")
    field.blur()
    expect(page.get_by_text("applied", exact=True)).to_be_visible()
    found = api.ask("GET", "/topics/numbers.limit")
    assert (found["spec"]["rate_bytes_per_s"], found["metadata"]["generation"]) == (10_000_000, 1)


def test_json_is_published_as_it_was_typed_and_shown_so(
    page: Page, platform: Platform, api: Api
) -> None:
    api.topic("numbers.json", mode="durable")
    page.goto(platform.url + "/messages?topic=numbers.json&view=publish")
    page.get_by_label("Payload", exact=True).fill(EXACT)
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="Published by")).to_be_visible()
    found = api.ask("GET", "/topics/numbers.json/messages?start=earliest")["messages"]
    assert [one["payload"]["text"] for one in found] == [EXACT]
    page.goto(platform.url + "/messages?topic=numbers.json&view=browse&from=earliest")
    page.get_by_role("row", name=re.compile("12345678901234567890")).click()
    expect(page.get_by_role("dialog")).to_contain_text('"id": 12345678901234567890')
    expect(page.get_by_role("dialog")).to_contain_text('"x": 1.0')


def test_a_seek_is_in_the_zone_of_the_header(
    new_york: Page, platform: Platform, api: Api, eventually: Eventually
) -> None:
    page = new_york
    api.topic("numbers.time", mode="durable")
    api.ask(
        "PUT",
        "/subscriptions/timed",
        {"spec": {"topic": "numbers.time", "start": {"at": "earliest"}}},
    )
    with publishing(platform.data_dir, "numbers.time", 50) as source:
        page.goto(platform.url + "/subscriptions/timed")
        expect(page.get_by_label("Positions").get_by_role("row")).to_have_count(2)
        eventually(lambda: source.done > 50, "messages", timeout_s=20)
    sent: list[Request] = []
    page.on("request", lambda one: sent.append(one) if "/seek" in one.url else None)
    page.get_by_role("button", name="Reset position").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To", exact=True).click()
    page.get_by_role("option", name="Time").click()
    then = dt.datetime.now(dt.UTC).replace(microsecond=0) - dt.timedelta(hours=1)
    field = dialog.get_by_label("Time (UTC)")
    field.fill(then.strftime("%Y-%m-%dT%H:%M:%S"))
    expect(dialog.get_by_label("Preview")).to_contain_text("The position does not change.")
    body = sent[-1].post_data_json
    assert body is not None
    assert body["time_ns"] == f"{int(then.timestamp())}000000000"
    ahead = then + dt.timedelta(hours=6)
    field.fill(ahead.strftime("%Y-%m-%dT%H:%M:%S"))
    expect(dialog).to_contain_text("in the future")
    expect(dialog.get_by_label("Preview")).to_contain_text("messages will be skipped")
    dialog.get_by_role("button", name="Cancel").click()
    page.keyboard.press("z")
    page.get_by_role("button", name="Reset position").click()
    dialog.get_by_label("To", exact=True).click()
    page.get_by_role("option", name="Time").click()
    expect(dialog.get_by_label(re.compile(r"Time \(New York, UTC-0[45]:00\)"))).to_be_visible()
    dialog.get_by_label("To", exact=True).click()
    page.get_by_role("option", name="Offset").click()
    expect(dialog.get_by_label("Queue", exact=True)).to_have_text("Queue 0")


def test_all_messages_of_several_queues_can_be_read_page_by_page(
    page: Page, platform: Platform, api: Api, eventually: Eventually
) -> None:
    api.topic("numbers.pages", mode="durable", queues=4)
    eventually(lambda: api.settled("/topics/numbers.pages"), "an engine has it", timeout_s=20)
    with publishing(platform.data_dir, "numbers.pages", 400) as source:
        eventually(lambda: source.done > 250, "messages", timeout_s=30)
    found = page.get_by_test_id("found")
    all_of_them = re.compile(rf"^{source.done} found")
    for start, button in (("earliest", "More"), ("latest", "Older")):
        page.goto(platform.url + f"/messages?topic=numbers.pages&view=browse&from={start}")
        expect(found).to_be_visible()
        another = page.get_by_role("button", name=button)
        while another.is_visible():
            before = found.inner_text()
            another.click()
            expect(found).not_to_have_text(before)
        expect(found).to_have_text(all_of_them)
    page.get_by_label("Queue", exact=True).click()
    page.get_by_role("option", name="Queue 2").click()
    expect(page).to_have_url(re.compile("queue=(%22)?2"))
    expect(page.get_by_role("row").nth(1)).to_contain_text("2:")
