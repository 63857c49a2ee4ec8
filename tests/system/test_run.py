"""`tidecast run`: an app in processes of its own, that are stopped, killed and asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.conftest import Eventually
from tests.support.lab import Lab, Platform, topology
from tests.support.ports import free_port
from tests.support.process import Child

APP = """
import asyncio
import os

import msgspec
import tidecast
from tidecast.app import DurableMessage, Retry

app = tidecast.App("billing")


class Order(msgspec.Struct):
    id: int
    wait: float = 0.0


@app.consumer("orders", "billing", concurrency=4, publishes="invoices",
              retry=Retry(delays=(0.0,), max_deliver=2), dead_letter="failed")
async def bill(order: Order, message: DurableMessage):
    os.write(1, b"begin %d %d\\n" % (order.id, os.getpid()))
    if order.id < 0:
        raise ValueError("below zero")
    if message.attempts == 1:
        await asyncio.sleep(order.wait)
    return {"of": order.id}
"""
TOPICS = [
    {"name": name, "mode": "durable", "queues": queues}
    for name, queues in {"orders": 4, "invoices": 1, "failed": 1}.items()
]


@pytest.fixture
def platform(lab: Lab) -> Platform:
    (lab.directory / "billing.py").write_text(APP)
    return lab.platform(topology(topics=TOPICS))


def start(platform: Platform, *arguments: str) -> tuple[Child, str]:
    """A running app, and the address of its health checks."""
    health = f"127.0.0.1:{free_port()}"
    lab = platform.lab
    child = lab.spawn(
        "run",
        "billing:app",
        "--app-dir",
        str(lab.directory),
        "--health",
        health,
        *arguments,
        platform=platform,
        stdout=subprocess.PIPE,
    )
    return child, f"http://{health}"


def ask(url: str, path: str) -> tuple[int, str]:
    """(status, text) of a page; (0, reason) when nothing listens."""
    try:
        with urllib.request.urlopen(url + path, timeout=10.0) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.read().decode()
    except OSError as problem:
        return 0, str(problem)


def invoices(platform: Platform) -> list[int]:
    lines = platform.run("sub", "invoices", "--from", "earliest", "--until-end").stdout
    return sorted(json.loads(line)["of"] for line in lines.splitlines())


def publish(platform: Platform, *orders: dict[str, Any]) -> None:
    with platform.connect() as client:
        for each in orders:
            client.publish("orders", json.dumps(each).encode(), key=str(each["id"]))
        client.flush()


def test_an_app_runs_answers_health_checks_and_drains_at_sigterm(
    platform: Platform, eventually: Eventually
) -> None:
    child, url = start(platform)
    eventually(lambda: ask(url, "/readyz")[0] == 200, "it is ready", timeout_s=60.0)
    assert ask(url, "/livez")[0] == 200
    assert ask(url, "/other")[0] == 404
    publish(platform, {"id": 1}, {"id": -1})
    wanted = [
        f'messages_{name}_total{{worker="0",handler="bill",topic="orders"}} 1'
        for name in ("handled", "retried", "rejected")
    ]
    eventually(
        lambda: all(line in ask(url, "/metrics")[1] for line in wanted),
        "an order is handled, and the order below zero given up",
        timeout_s=60.0,
    )
    begun = [child.line() for _ in range(3)]
    publish(platform, {"id": 2, "wait": 0.5})
    assert child.line() == f"begin 2 {child.pid}"
    child.signal(signal.SIGTERM)
    assert child.wait(60.0) == 0
    assert invoices(platform) == [1, 2]  # the call under way came to its end
    assert f"begin 1 {child.pid}" in begun
    letters = platform.run("sub", "failed", "--from", "earliest", "--until-end", "--json").stdout
    (letter,) = [json.loads(line) for line in letters.splitlines()]
    assert letter["headers"]["dead-reason"] == "ValueError: below zero"


@pytest.mark.parametrize("workers", [1, 2])
def test_the_totals_as_json(platform: Platform, eventually: Eventually, workers: int) -> None:
    checked = platform.json(
        "run", "billing:app", "--app-dir", str(platform.lab.directory), "--check"
    )
    assert (checked["app"], checked["starts"], checked["declared"]) == ("billing", True, [])
    assert checked["handlers"] == [
        {
            "name": "bill",
            "kind": "consumer",
            "topic": "orders",
            "subscription": "billing",
            "concurrency": 4,
        }
    ]
    child, url = start(platform, "--json", "--workers", str(workers))
    eventually(lambda: ask(url, "/readyz")[0] == 200, "ready", timeout_s=60.0)
    publish(platform, *({"id": n} for n in range(1, 21)))
    begun = [child.line() for _ in range(20)]
    eventually(lambda: len(invoices(platform)) == 20, "all are handled", timeout_s=60.0)
    child.signal(signal.SIGTERM)
    said = json.loads(child.line())
    assert child.wait(60.0) == 0
    assert len({line.split()[2] for line in begun}) == workers
    [handler] = said.pop("handlers")
    assert said == {"app": "billing", "url": platform.url, "workers": workers, "exit_code": 0}
    assert handler.pop("seconds") > 0
    assert handler == {
        "name": "bill",
        "kind": "consumer",
        "topic": "orders",
        "subscription": "billing",
        "handled": 20,
        "retried": 0,
        "rejected": 0,
    }


def test_a_worker_that_is_killed_is_replaced_and_nothing_is_lost(
    platform: Platform, eventually: Eventually
) -> None:
    child, url = start(platform, "--workers", "2")
    eventually(lambda: ask(url, "/readyz")[0] == 200, "both are ready", timeout_s=60.0)
    publish(platform, *({"id": n, "wait": 600.0 if n == 0 else 0.0} for n in range(40)))
    pids: dict[int, int] = {}
    while len(pids) < 40:
        _, order, pid = child.line().split()
        pids[int(order)] = int(pid)
    assert len(set(pids.values())) == 2  # both work
    os.kill(pids[0], signal.SIGKILL)
    while True:  # the order that it had not completed is handled by another process
        _, order, pid = child.line().split()
        if int(order) == 0:
            break
    assert int(pid) != pids[0]
    eventually(lambda: "it starts again" in child.log.read_text(), "it is missed", timeout_s=60.0)
    eventually(lambda: ask(url, "/readyz")[0] == 200, "it is replaced", timeout_s=60.0)
    workers = json.loads(ask(url, "/readyz")[1])["workers"]
    assert [each["phase"] for each in workers.values()] == ["ready", "ready"]
    child.signal(signal.SIGTERM)
    assert child.wait(90.0) == 0
    assert set(invoices(platform)) == set(range(40))
    assert "worker" in child.log.read_text()
    assert "exit code -9; it starts again" in child.log.read_text()


def test_workers_end_when_their_parent_is_killed(
    platform: Platform, eventually: Eventually
) -> None:
    child, url = start(platform, "--workers", "2")
    eventually(lambda: ask(url, "/readyz")[0] == 200, "both are ready", timeout_s=60.0)
    workers = [each.pid for each in psutil.Process(child.pid).children()]
    assert len(workers) == 2
    child.kill()
    eventually(lambda: not any(map(psutil.pid_exists, workers)), "both have ended", timeout_s=60.0)


def test_an_app_goes_on_when_its_engine_is_killed(
    platform: Platform, eventually: Eventually
) -> None:
    _, url = start(platform)
    eventually(lambda: ask(url, "/readyz")[0] == 200, "it is ready", timeout_s=60.0)
    publish(platform, {"id": 1})
    eventually(lambda: invoices(platform) == [1], "it is handled", timeout_s=60.0)
    platform.kill()
    eventually(lambda: ask(url, "/readyz")[0] == 503, "it is not ready", timeout_s=60.0)
    assert ask(url, "/livez")[0] == 200
    platform.start()
    eventually(lambda: ask(url, "/readyz")[0] == 200, "it is ready again", timeout_s=60.0)
    publish(platform, {"id": 2})
    eventually(lambda: set(invoices(platform)) == {1, 2}, "it goes on", timeout_s=60.0)


def test_mistakes_are_named_at_the_start(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import tidecast\nbilling = tidecast.App()\nother = 1\n")
    (tmp_path / "broken.py").write_text("import not_there\n")

    def said(*arguments: str, code: int = 2) -> str:
        done = lab.run("run", *arguments, "--app-dir", str(tmp_path), check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert "no module absent" in said("absent:app")
    assert "shop has no app other: it has billing" in said("shop:other")
    assert "it has no handlers" in said("shop:billing")
    assert "No module named 'not_there'" in said("broken:app", code=1)
    (tmp_path / "good.py").write_text(APP)
    shown = said("good:app", "--check", code=0)
    assert all(word in shown for word in ("bill", "orders", "billing", "Order"))
    assert "health: 'nowhere': allowed is HOST:PORT" in said(
        "good:app", "--health", "nowhere", code=1
    )
