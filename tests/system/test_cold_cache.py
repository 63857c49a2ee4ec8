"""A first start with an empty kernel cache: calls wait for the compiler, however long it takes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from tests.support.builds import COMPILE_TIMEOUT_S
from tests.support.lab import Lab, topology

from tidecast.api.frames.common import Working
from tidecast.client.links.socket_session import REQUEST_TIMEOUT_S, _Wire

pytestmark = pytest.mark.long


@pytest.mark.timeout(900)
def test_a_durable_topic_waits_for_its_kernels(
    lab: Lab, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit of 8 s for each answer, less than the compiler needs."""
    platform = lab.platform(topology(), start=False)
    cache = {"env": {**os.environ, "TIDECAST_CACHE_DIR": str(short_dir / "kernels")}}
    platform.engine = lab.spawn("engine", platform=platform, **cache)
    assert "ready" in platform.engine.line("ready, after its kernels", COMPILE_TIMEOUT_S)
    ask, heard = _Wire.ask, list[str]()

    def impatient(wire: _Wire, body: object, timeout_s: float) -> object:
        assert timeout_s <= REQUEST_TIMEOUT_S
        hear = wire._calls.hear

        def note(frame: Working) -> None:
            heard.append(frame.reason)
            hear(frame)

        monkeypatch.setattr(wire._calls, "hear", note)
        return ask(wire, body, 8.0)  # type: ignore[arg-type]

    with platform.connect() as client:
        monkeypatch.setattr(_Wire, "ask", impatient)
        made: list[object] = []
        calls = [
            threading.Thread(
                target=lambda n=n: made.append(client.topics.ensure(f"t{n}", mode="durable"))
            )
            for n in range(2)
        ]
        for call in calls:
            call.start()
        for call in calls:
            call.join(COMPILE_TIMEOUT_S)
        assert len(made) == 2
        with client.publisher("t0") as publisher:
            publisher.publish(b"x")
            publisher.flush(timeout=30.0)
    assert {each.split(",")[0] for each in heard} == {"it compiles kernels"}
