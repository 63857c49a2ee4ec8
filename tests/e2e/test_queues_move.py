"""Two engines share a directory of queues: the one that has them is killed, the page follows."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Page, expect

import tidecast.sync
from tests.conftest import Eventually
from tests.e2e.conftest import Api, Platform, another_engine

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]
FIRST = "0-second"
"""By the balancer the first name gets what does not go up evenly."""


def test_the_page_says_who_has_the_queues_and_consumers_go_on(
    page: Page, platform: Platform, api: Api, eventually: Eventually
) -> None:
    topology = yaml.safe_load((platform.data_dir / "topology.yaml").read_text())
    topology["node"] = {
        "name": FIRST,
        "leases": {"directory": str(platform.data_dir), "lease_s": 2.0},
    }
    [mine] = [n["metadata"]["name"] for n in api.ask("GET", "/nodes")["items"]]
    with another_engine(platform, api, FIRST, yaml.safe_dump(topology)) as (data_dir, engine):
        api.topic("shared", mode="durable", owner="*", fsync_interval_ms=5)

        def keeper() -> str:
            return str(api.ask("GET", "/queues/shared:0")["node"])

        eventually(
            lambda: keeper() == FIRST, "the queues where the balancer has them", timeout_s=60
        )
        page.goto(platform.url + "/topics/shared")
        queues = page.get_by_role("table", name="Queues")
        expect(queues.get_by_role("cell", name=FIRST)).to_be_visible()
        with tidecast.sync.connect(f"tidecast://{platform.data_dir}") as standby:
            waiting = standby.consumer("shared", "billing")
            with tidecast.sync.connect(f"tidecast://{data_dir}") as client:
                publisher = client.publisher("shared")
                publisher.publish_batch([b"%d" % i for i in range(10)], ack="durable").check()
                batch = client.consumer("shared", "billing").fetch(6, 10.0)
                assert batch.payloads() == [b"%d" % i for i in range(6)]
                batch.ack()
                eventually(
                    lambda: '"position": 6' in shown(api), "the position stored", timeout_s=10
                )
                assert not waiting.fetch(1, 0.1)
                _picture(page, "kept by the second")
                engine.kill()
                got = waiting.fetch(4, 60.0)
                assert got.payloads() == [b"%d" % i for i in range(6, 10)], "where it was"
                got.ack()
        expect(queues.get_by_role("cell", name=mine)).to_be_visible(timeout=30_000)
        assert re.match(r"^[2-9]", queues.get_by_role("cell").nth(2).inner_text())
        page.goto(platform.url + "/topics/shared?tab=settings")
        expect(page.get_by_text("shared by lease")).to_be_visible()
        page.goto(platform.url + "/topics/shared")
        expect(queues.get_by_role("cell", name=mine)).to_be_visible()
        _picture(page, "kept by the first")


def shown(api: Api) -> str:
    """How far the subscription is, as the engine that has it says."""
    row = api.ask("GET", "/queues/shared:0")
    return f'"position": {row["cursor"]}'


def _picture(page: Page, name: str) -> None:
    """For whoever wants to look: TIDECAST_PICTURES names a directory."""
    directory = os.environ.get("TIDECAST_PICTURES")
    if directory:
        page.screenshot(path=Path(directory) / f"{name}.png", full_page=True)
