"""Kafka clients, groups and lag, as a person sees them: a real consumer reads and leaves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Eventually
from tests.e2e.conftest import Api, Platform, another_engine
from tests.support.kafka import TIMEOUT_S
from tests.support.ports import free_port

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
N = 12


@pytest.fixture(scope="module")
def address(platform: Platform, api: Api) -> Iterator[str]:
    """An engine with an endpoint, which the platform manages."""
    where = f"127.0.0.1:{free_port()}"
    with another_engine(platform, api, "broker", None, "--kafka", where):
        yield where


def produce(address: str, n: int) -> None:
    """So many records into queue 0, as soon as the topic is there."""
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for i in range(n):
        producer.produce("sales", b"%d" % i, partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def joined(address: str, n: int) -> Any:
    """A consumer that has read ``n`` records and committed five of them."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "till",
            "client.id": "cash-desk",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["sales"])
    got: list[Any] = []
    while len(got) < n:
        got += consumer.consume(n, TIMEOUT_S)
    marks = [confluent_kafka.TopicPartition("sales", 0, 5)]
    consumer.commit(offsets=marks, asynchronous=False)
    return consumer


def test_groups_and_clients_are_shown_live_reset_and_deleted(
    page: Page, platform: Platform, api: Api, address: str, eventually: Eventually
) -> None:
    api.topic("sales", mode="durable", queues=2, fsync_interval_ms=2)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": address})
    eventually(
        lambda: "sales" in admin.list_topics(timeout=TIMEOUT_S).topics, "the topic", timeout_s=60
    )
    produce(address, N)
    consumer = joined(address, N)

    page.goto(platform.url + "/subscriptions")
    page.locator("label", has_text="Kafka clients").click()
    client = page.get_by_role("row", name=re.compile("cash-desk")).first
    expect(client).to_contain_text("confluent-kafka-python")
    page.locator("label", has_text="Kafka groups").click()
    row = page.get_by_role("row", name=re.compile("till"))
    expect(row).to_contain_text("Stable")
    expect(row).to_contain_text("7")
    produce(address, 3)
    expect(row).to_contain_text("10")  # live: nothing was loaded again

    row.click()
    sheet = page.get_by_role("dialog", name="till")
    expect(sheet.get_by_test_id("group-lag")).to_have_text("10")
    offsets = sheet.get_by_role("table", name="Offsets")
    expect(offsets.get_by_role("row", name=re.compile("sales:0"))).to_contain_text("15")
    expect(sheet.get_by_role("table", name="Members")).to_contain_text("cash-desk")
    expect(sheet.get_by_text("Stop its consumers to reset or delete it.")).to_be_visible()
    expect(sheet.get_by_role("button", name="Reset offsets")).to_be_disabled()
    consumer.close()
    expect(sheet.get_by_text("No members")).to_be_visible()

    sheet.get_by_role("button", name="Reset offsets").click()
    form = page.get_by_role("dialog", name="Reset offsets")
    expect(form.get_by_role("region", name="Preview")).to_contain_text(
        "5 records will be read again"
    )
    form.get_by_role("button", name="Reset offsets").click()
    expect(page.get_by_text("The offsets of till are reset")).to_be_visible()
    expect(sheet.get_by_test_id("group-lag")).to_have_text("15")
    found = api.ask("GET", "/kafka/groups/till")
    assert {row["queue"]: row["committed"] for row in found["offsets"]} == {0: "0", 1: "0"}

    sheet.get_by_role("button", name="Delete group").click()
    question = page.get_by_role("dialog", name=re.compile("^Delete group till"))
    question.get_by_role("button", name="Copy as").click()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("menuitem", name="tidecast").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == f"tidecast kafka delete till --yes --data-dir {platform.data_dir}"
    question.get_by_label("Type till to confirm").fill("till")
    question.get_by_role("button", name="Delete group").click()
    expect(page.get_by_text("Group till is deleted")).to_be_visible()
    expect(page.get_by_text("No Kafka groups")).to_be_visible()
    assert api.ask("GET", "/kafka/groups")["items"] == []
