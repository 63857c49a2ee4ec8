"""The page of the cluster: a node is drained by a click, and its topics move while one looks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Locator, Page, expect

import tidecast.sync
from tests.conftest import Eventually
from tests.e2e.conftest import Api, Platform, another_engine, names_of_nodes

OTHER = "0-other"
TOPICS = ("moved.a", "moved.b", "moved.c")


def test_the_page_shows_each_engine_and_its_level(page: Page, platform: Platform, api: Api) -> None:
    found = api.ask("GET", "/cluster")
    page.goto(platform.url + "/cluster")
    card = page.get_by_label("Cluster", exact=True)
    expect(card.get_by_text(f"Level {found['level']}", exact=True)).to_be_visible()
    expect(card.get_by_text("the newest level of this service")).to_be_visible()
    expect(card.get_by_role("button", name="Raise the level")).to_have_count(0)
    assert found["engines"]
    for engine in found["engines"]:
        row = card.get_by_role("row", name=engine["node"])
        expect(row).to_contain_text(engine["version"])
        expect(row).to_contain_text("connected" if engine["state"] == "up" else "not connected")
        expect(row).to_contain_text("takes topics")
    sealed = page.get_by_role("table", name="Sealed transports")
    expect(sealed.get_by_text("off: packets are plain").first).to_be_visible()


def test_keys_are_rotated_and_a_leaked_secret_is_revoked(
    page: Page, platform: Platform, api: Api
) -> None:
    def epochs() -> list[tuple[int, str]]:
        found = api.ask("GET", "/transports/multicast/keys")["epochs"]
        return [(int(one["epoch"]), one["state"]) for one in found]

    page.goto(platform.url + "/cluster")
    row = page.get_by_role("table", name="Sealed transports").get_by_role("row", name="multicast")
    ask, dialog = row.get_by_role("button", name="Rotate"), page.get_by_role("dialog")
    before = max((epoch for epoch, _ in epochs()), default=0)
    ask.click()
    expect(dialog).to_contain_text("no message is lost")
    dialog.get_by_role("button", name="Cancel").click()
    assert max((epoch for epoch, _ in epochs()), default=0) == before
    ask.click()
    dialog.get_by_role("button", name="Rotate", exact=True).click()
    expect(dialog).to_have_count(0)
    expect(row).to_contain_text(f"{before + 1} ")
    ask.click()
    dialog.get_by_role("switch").click()
    expect(dialog).to_contain_text("lose packets until they get it")
    dialog.get_by_role("button", name="Revoke and rotate").click()
    expect(dialog).to_have_count(0)
    expect(row).to_contain_text(f"{before + 2} active")
    expect(row).not_to_contain_text(f"{before + 1} ")
    assert epochs() == [(before + 2, "active")]


@pytest.fixture
def other(platform: Platform, api: Api) -> Iterator[Path]:
    """The data directory of an engine that shares the queues of the first."""
    topology: dict[str, Any] = yaml.safe_load((platform.data_dir / "topology.yaml").read_text())
    topology["node"] = {
        "name": OTHER,
        "leases": {"directory": str(platform.data_dir), "lease_s": 2.0},
    }
    with another_engine(platform, api, OTHER, yaml.safe_dump(topology)) as (data_dir, _):
        yield data_dir
        for topic in TOPICS:
            api.ask("DELETE", f"/topics/{topic}")


def engine_row(page: Page, name: str) -> Locator:
    table = page.get_by_role("table", name="Engines of the cluster")
    return table.get_by_role("row", name=re.compile(f"^{re.escape(name)}"))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_node_is_drained_by_a_click_and_its_topics_move(
    page: Page, platform: Platform, api: Api, other: Path, eventually: Eventually
) -> None:
    [mine] = names_of_nodes(api) - {OTHER}
    for topic in TOPICS:
        api.topic(topic, mode="durable", owner="*", fsync_interval_ms=5)

    def keepers() -> list[str]:
        return [str(api.ask("GET", f"/queues/{topic}:0")["node"]) for topic in TOPICS]

    eventually(lambda: sorted(set(keepers())) == [OTHER, mine], "a share each", timeout_s=60)
    before = keepers()
    with tidecast.sync.connect(f"tidecast://{other}") as client:
        for topic in TOPICS:
            client.publisher(topic).publish(b"1", ack="durable", timeout=60.0)
    page.goto(platform.url + "/cluster")
    row = engine_row(page, OTHER)
    expect(row.get_by_text("takes topics")).to_be_visible()
    shown = row.get_by_role("cell").nth(5)
    expect(shown).to_have_text(str(before.count(OTHER)))
    row.get_by_role("button", name="Drain").click()
    dialog = page.get_by_role("dialog", name=f"Drain {OTHER}?")
    preview = dialog.get_by_label("Preview", exact=True)
    for topic, keeper in zip(TOPICS, before, strict=True):
        if keeper == OTHER:
            expect(preview).to_contain_text(topic)
    assert keepers() == before, "a preview moves nothing"
    dialog.get_by_role("button", name="Drain").click()
    expect(dialog).to_have_count(0)
    expect(row.get_by_text("drained and empty")).to_be_visible()
    expect(shown).to_have_text("0")
    expect(engine_row(page, mine).get_by_role("cell").nth(5)).to_have_text("3")
    moves = page.get_by_role("table", name="Moves of leased topics")
    moved = moves.get_by_role("row").filter(has_text="the node is drained")
    expect(moved).to_have_count(before.count(OTHER))
    expect(moved.first).to_contain_text(re.compile(f"{OTHER}.*{re.escape(mine)}"))
    assert keepers() == [mine] * 3
    with tidecast.sync.connect(f"tidecast://{platform.data_dir}") as client:
        for topic in TOPICS:  # what was acked by the engine before
            assert client.consumer(topic, "check").fetch(1, 30.0).payloads() == [b"1"]
    page.get_by_label("Topic of the moves").fill("moved.none")
    expect(page.get_by_text("No leased topic has moved.")).to_be_visible()
    expect(page).to_have_url(re.compile("topic=moved.none"))
    page.get_by_label("Topic of the moves").fill("")
    row.get_by_role("button", name="Undrain").click()
    page.get_by_role("dialog").get_by_role("button", name="Undrain").click()
    expect(row.get_by_text("takes topics")).to_be_visible()
    expect(shown).to_have_text(re.compile("^[12]$"))
    expect(moves.get_by_role("row").filter(has_text="others hold less").first).to_be_visible()
