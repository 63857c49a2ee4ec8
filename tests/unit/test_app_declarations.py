"""Topics and subscriptions that an app declares: created, checked, and shown by the shell."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tidecast
import tidecast.testing
from tidecast.app import App
from tidecast.app.command import run as run_command
from tidecast.config.topology import topology_from
from tidecast.engine.process import Engine
from tidecast.errors import ConfigError, Conflict, NotFound


def shop(**settings: Any) -> App:
    """An app that declares what it needs."""
    app = App("shop", **settings)
    orders = app.topic("orders", mode="durable", queues=2)
    app.topic("failed", mode="durable")
    app.subscription(orders, "audit", max_deliver=3, start="latest")

    @app.consumer(orders, "billing", dead_letter="failed")
    async def bill(amount: int) -> None: ...

    return app


def in_memory(main: Any, **options: Any) -> None:
    """Run ``main(client)`` on a node in memory."""

    async def running() -> None:
        async with tidecast.testing.connect_async(**options) as client:
            await main(client)

    asyncio.run(running())


def test_what_an_app_declares_is_there_before_its_handlers() -> None:
    async def main(client: tidecast.Connection) -> None:
        for _ in range(2):  # the second time it is there
            app = shop()
            async with app.running(client) as running:
                assert (await client.topics.get("orders")).queues == 2
                audit = await client.subscriptions.get("orders", "audit")
                assert audit.max_deliver == 3
                await client.publish("orders", b"5", ack="durable")
                await running.wait("bill")

    in_memory(main)


def test_other_settings_keep_an_app_from_starting_and_change_nothing() -> None:
    async def main(client: tidecast.Connection) -> None:
        await client.topics.ensure("orders", mode="durable", queues=3)
        app = shop()
        with pytest.raises(
            Conflict, match="topic orders: it has other settings: queues is 3, not 2"
        ):
            async with app.running(client):
                raise AssertionError("it runs")
        assert app.phase == "stopped"
        assert [each.name for each in await client.topics.list()] == ["orders"]
        assert await client.subscriptions.list() == []

    in_memory(main)


def test_an_app_that_creates_nothing_wants_all_to_be_there() -> None:
    async def main(client: tidecast.Connection) -> None:
        with pytest.raises(NotFound, match="no topic orders"):
            async with shop(create=False).running(client):
                raise AssertionError("it runs")
        assert await client.topics.list() == []
        async with shop().running(client):
            pass
        async with shop(create=False).running(client):
            pass

    in_memory(main)


def test_the_lifespan_finds_the_declared_topics() -> None:
    seen: list[str] = []

    class Life:
        def __init__(self, app: App) -> None:
            self.app = app

        async def __aenter__(self) -> None:
            seen.extend(each.name for each in await self.app.client.topics.list())

        async def __aexit__(self, *_: object) -> None: ...

    async def main(client: tidecast.Connection) -> None:
        async with shop(lifespan=Life).running(client):
            assert seen == ["failed", "orders"]

    in_memory(main)


def test_results_that_nobody_stores_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main(client: tidecast.Connection) -> None:
        app = App("typo")
        app.topic("orders", mode="durable")
        app.topic("invoices", mode="durable")

        @app.consumer("orders", "billing", publishes="invocies")
        async def wrong(amount: int) -> int:
            return amount

        @app.consumer("orders", "copies", publishes="invoices")
        async def right(amount: int) -> int:
            return amount

        async with app.running(client) as running:
            for _ in range(3):
                await client.publish("orders", b"5", ack="durable")
            await running.wait(wrong, 3)
            await running.wait(right, 3)

    with caplog.at_level("WARNING", "tidecast.app"):
        in_memory(main)
    (warning,) = [each.getMessage() for each in caplog.records]
    assert "wrong: results go to the topic invocies, which is live: they are not stored" in warning


def test_wrong_declarations_are_refused() -> None:
    app = shop()
    with pytest.raises(ConfigError, match="app shop: orders is declared twice"):
        app.topic("orders")
    with pytest.raises(ConfigError, match="orders audit is declared twice"):
        app.subscription("orders", "audit")

    async def main(client: tidecast.Connection) -> None:
        wrong = shop()
        wrong.topic("other", quues=3)  # type: ignore[call-arg]
        with pytest.raises(ConfigError, match="quues"):
            async with wrong.running(client):
                raise AssertionError("it runs")
        right = shop()
        async with right.running(client):
            with pytest.raises(ConfigError, match="it runs; declare topics"):
                right.topic("late")

    in_memory(main)


MODULE = """
from tests.unit.test_app_declarations import shop
app = shop()
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command puts the app's directory there
    (tmp_path / "declared_shop.py").write_text(MODULE, "utf-8")
    made = Engine(tmp_path / "data", topology_from({"transports": [{"name": "i", "kind": "ipc"}]}))
    made.start()
    yield tmp_path
    made.stop()
    sys.modules.pop("declared_shop", None)


def check(place: Path, *arguments: str) -> Result:
    """`tidecast run --check`."""
    given = ["declared_shop:app", "--check", "--app-dir", str(place), *arguments]
    return CliRunner().invoke(run_command, [*given, "--data-dir", str(place / "data")])


def test_the_shell_compares_what_is_declared_with_the_engine(engine: Path) -> None:
    found = check(engine)
    assert found.exit_code == 0, found.output
    assert found.output.count("is created at start") == 3
    missing = check(engine, "--no-create")
    assert missing.exit_code == 1
    assert missing.output.count("missing") == 3
    with tidecast.sync.connect(f"tidecast://{engine / 'data'}") as client:
        assert client.topics.list() == []  # a check creates nothing
        client.topics.create("orders", mode="durable", queues=2)
        client.topics.create("failed", mode="live")
        client.subscriptions.create("orders", "audit", max_deliver=3)
    differs = check(engine)
    assert differs.exit_code == 1
    assert differs.output.count("as declared") == 2
    assert "other settings" in differs.output
