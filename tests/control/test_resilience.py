"""Postgres or the service killed under load: what was answered is there, traffic continues."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.conftest import Eventually
from tests.control.test_link import _engine, _node, _topic
from tests.support.control_process import ControlProcess
from tidecast.engine.process import Engine
from tidecast.telemetry.views import connect_inside


@pytest.fixture
def service(short_dir: Path) -> Iterator[ControlProcess]:
    """A process with a Postgres of its own."""
    made = ControlProcess(short_dir / "control")
    made.data_dir.mkdir()
    made.start()
    yield made
    made.stop()


class Writer:
    """Creates topics without a pause, and remembers what was answered."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self.made: list[str] = []
        self.refused: list[int | str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        serial = 0
        while not self._stopping.is_set():
            name = f"t.{serial}"
            spec = {"spec": {"wire_id": serial + 1, "history_bytes": 1 << 16}}
            try:
                answer = self._client.put(f"/topics/{name}", json=spec)
            except httpx.HTTPError as problem:
                self.refused.append(type(problem).__name__)
                self._stopping.wait(0.02)
                continue
            if answer.status_code in (200, 201):
                self.made.append(name)
                serial += 1
            else:
                self.refused.append(answer.status_code)
                self._stopping.wait(0.02)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


def _names(client: httpx.Client) -> set[str]:
    found: set[str] = set()
    cursor: dict[str, Any] = {}
    while True:
        page = client.get("/topics", params={"limit": 500, **cursor}).json()
        found |= {item["metadata"]["name"] for item in page["items"]}
        if page["next_cursor"] is None:
            return found
        cursor = {"cursor": page["next_cursor"]}


def test_postgres_killed_under_writes(service: ControlProcess, eventually: Eventually) -> None:
    with service.admin() as client:
        writer = Writer(client)
        eventually(lambda: len(writer.made) >= 5, "writes", timeout_s=30)
        before = service.postgres_pid
        service.kill_postgres()
        eventually(lambda: len(writer.refused) > 0, "Postgres is missed", timeout_s=30)
        at = len(writer.made)
        eventually(lambda: len(writer.made) >= at + 5, "writes again", timeout_s=60)
        writer.stop()
        assert set(writer.refused) == {503}, writer.refused
        assert service.postgres_pid != before
        assert set(writer.made) <= _names(client)
        ready = f"{service.url}/health/ready"  # its tasks try again after a pause that grows
        eventually(lambda: client.get(ready).json()["ok"], "every task again", timeout_s=60)


class Load:
    """A publisher and a subscriber inside an engine: every message is counted."""

    def __init__(self, engine: Engine, topic: str) -> None:
        self._connection = connect_inside(_node(engine), "load")
        self._reader = self._connection.subscribe(topic, on_gap="raise")
        self._publisher = self._connection.publisher(topic)
        self._stopping, self._sent_all = threading.Event(), threading.Event()
        self.sent, self.got = 0, 0
        self.problems: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (self._send, self._read)
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except BaseException as problem:  # noqa: BLE001 - shown by the test
            self.problems.append(problem)

    def _send(self) -> None:
        while not self._stopping.wait(0.001):
            self._publisher.publish(b"%d" % self.sent, timeout=5.0, flush=True)
            self.sent += 1

    def _read(self) -> None:
        while not self._sent_all.is_set() or self.got < self.sent:
            batch = self._reader.poll(1024)
            for message in batch.messages:
                assert int(bytes(message.data)) == self.got, self.got
                self.got += 1
            if not batch:
                self._sent_all.wait(0.001)

    def stop(self) -> None:
        self._stopping.set()
        self._threads[0].join(30)
        self._sent_all.set()
        self._threads[1].join(30)
        self._connection.close()
        assert self.problems == []
        assert self.got == self.sent


@pytest.mark.long
@pytest.mark.timeout(300)
def test_both_killed_while_an_engine_carries_traffic(
    service: ControlProcess, short_dir: Path, eventually: Eventually
) -> None:
    """The engine runs on, takes up with the service again, and has all that was answered."""
    client = service.admin()
    token = client.post("/enrolments", json={"name": "e1"}).json()["token"]
    (short_dir / "engine").mkdir()
    engine = _engine(service, short_dir / "engine", token)  # type: ignore[arg-type]
    try:
        assert client.put("/topics/load", json={"spec": {}}).status_code == 201
        eventually(lambda: _topic(engine, "load") is not None, "the topic", timeout_s=30)
        load = Load(engine, "load")
        writer = Writer(client)
        link = engine.links[0]  # type: ignore[attr-defined]
        for kill in (service.kill_postgres, service.kill, service.kill_postgres):
            at = len(writer.made)
            eventually(lambda a=at: len(writer.made) > a + 3, "some writes", timeout_s=60)
            sent = load.sent
            kill()
            if kill == service.kill:
                eventually(lambda: not link.connected.is_set(), "the link's end", timeout_s=30)
                eventually(lambda s=sent: load.sent > s + 200, "traffic", timeout_s=30)
                service.start()
            at = len(writer.made)
            eventually(lambda a=at: len(writer.made) > a + 5, "writes again", timeout_s=90)
            assert load.sent > sent
            assert load.problems == []
        writer.stop()
        eventually(
            lambda: {t.name for t in _node(engine).topics()} >= {*writer.made},
            "reconciled",
            timeout_s=60,
        )
        load.stop()
        assert set(writer.made) <= _names(client)
        assert len(writer.made) > 15
    finally:
        engine.stop()
        client.close()
