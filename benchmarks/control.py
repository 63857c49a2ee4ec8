"""The control service: reads with 10,000 topics, large applies, 200 viewers, memory, overhead.

``python -m benchmarks.control --json`` prints one JSON object, in the shape of `tidecast bench`.
Needs a quiet machine: service, Postgres, engine and the load generator share its cores.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks import control_load as load
from tidecast.bench.measure import machine

PASSWORD = "a long password for benches"
TICKS = os.sysconf("SC_CLK_TCK")
CHANNELS = ["overview", "topics", "flow"]


@dataclass
class Sizes:
    """How much is measured."""

    topics: int = 10_000
    documents: int = 2000
    per_s: int = 200
    seconds: float = 10.0
    viewers: int = 200
    traffic_per_s: int = 1000


@dataclass
class Platform:
    """A service and an engine, as processes."""

    url: str
    service: int
    engine: int
    cookie: str
    csrf: str

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """One request of the admin; what it answered."""
        raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
        request = urllib.request.Request(
            f"{self.url}/api/v1{path}",
            method=method,
            data=raw.encode() if isinstance(raw, str) else raw,
            headers={"Cookie": self.cookie, "X-CSRF-Token": self.csrf, "Content-Type": kind},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mb(pid: int) -> float:
    """Resident memory of one process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return round(next(int(x.split()[1]) for x in lines if x.startswith("VmRSS")) / 1024, 1)


def cores(pid: int, seconds: float) -> float:
    """Share of one core that a process uses in the next ``seconds``."""
    began, before = time.monotonic(), cpu_s(pid)
    time.sleep(seconds)
    return round((cpu_s(pid) - before) / (time.monotonic() - began), 4)


# --- the platform ---------------------------------------------------------------------------------


def _ready(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        if line.strip() == "ready":
            return lines
        lines.append(line)
    raise SystemExit("a process did not start: " + "".join(lines))


def _log_in(url: str, first: str) -> tuple[str, str]:
    cookie = csrf = ""
    for path, body in (
        ("login", {"user": "admin", "password": first}),
        ("password", {"old": first, "new": PASSWORD}),
        ("login", {"user": "admin", "password": PASSWORD}),
    ):
        request = urllib.request.Request(
            f"{url}/api/v1/auth/{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Cookie": cookie, "X-CSRF-Token": csrf},
        )
        with urllib.request.urlopen(request) as answer:
            text = answer.read()
            if path == "login":
                cookie = answer.headers["Set-Cookie"].partition(";")[0]
                csrf = json.loads(text)["csrf_token"]
    return cookie, csrf


@contextmanager
def platform(directory: Path) -> Iterator[Platform]:
    """Started; stopped at the end of the block."""
    environment = {k: v for k, v in os.environ.items() if k != "TIDECAST_DATABASE_URL"}
    command = [
        sys.executable,
        "-m",
        "tidecast_control",
        "--data-dir",
        str(directory),
        "--port",
        "0",
        "--local-token",
    ]
    with (directory / "service.log").open("wb") as log:
        service = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
    engine: subprocess.Popen[bytes] | None = None
    try:
        lines = _ready(service)
        url = lines[0].split()[-1]
        first = next(line for line in lines if "password" in line).split()[-1]
        cookie, csrf = _log_in(url, first)
        token = (directory / "enrol.token").read_text().strip()
        command = [
            sys.executable,
            "-m",
            "tidecast.cli",
            "engine",
            "--data-dir",
            str(directory),
            "--control",
            url,
            "--enrol",
            token,
        ]
        with (directory / "engine.log").open("wb") as log:
            engine = subprocess.Popen(command, stdout=log, stderr=log)
        made = Platform(url, service.pid, engine.pid, cookie, csrf)
        deadline = time.monotonic() + 120
        while not made.call("GET", "/system")["nodes_up"]:
            if time.monotonic() > deadline:
                raise SystemExit((directory / "engine.log").read_text())
            time.sleep(0.2)
        yield made
    finally:
        for process in (engine, service):
            if process is not None:
                process.terminate()
                process.wait(60)


# --- what is measured -----------------------------------------------------------------------------


def _documents(first: int, count: int) -> bytes:
    parts = [
        f"kind: topic\nmetadata: {{name: md.{n % 50}.s{n}, labels: {{team: t{n % 7}}}}}\n"
        f"spec: {{wire_id: {n + 1}, history_bytes: 65536}}\n"
        for n in range(first, first + count)
    ]
    return "---\n".join(parts).encode()


def measure_apply(made: Platform, sizes: Sizes) -> dict[str, float]:
    """All topics, by applies of so many documents; one again, without a change."""
    spent = []
    for first in range(0, sizes.topics, sizes.documents):
        raw = _documents(first, min(sizes.documents, sizes.topics - first))
        began = time.monotonic()
        made.call("POST", "/apply", raw, "application/yaml")
        spent.append(time.monotonic() - began)
    began = time.monotonic()
    made.call(
        "POST", "/apply", _documents(0, min(sizes.documents, sizes.topics)), "application/yaml"
    )
    return {
        "apply_s": round(max(spent), 3),
        "apply_documents_per_s": round(sizes.topics / sum(spent), 1),
        "apply_unchanged_s": round(time.monotonic() - began, 3),
    }


def wait_applied(made: Platform) -> float:
    """Until the engine has applied everything; seconds."""
    began = time.monotonic()
    while time.monotonic() - began < 300:
        status = made.call("GET", "/nodes")["items"][0]["status"]
        if status["topology_version"] == status["wanted_version"]:
            return round(time.monotonic() - began, 2)
        time.sleep(0.2)
    raise SystemExit("the engine did not apply everything within 300 s")


def paths_of(sizes: Sizes, chance: random.Random) -> list[str]:
    """Reads as the page does them: details, pages of lists, searches, policies, nodes."""
    found = []
    for _ in range(int(sizes.per_s * sizes.seconds)):
        n, draw = chance.randrange(sizes.topics), chance.random()
        if draw < 0.7:
            found.append(f"/api/v1/topics/md.{n % 50}.s{n}")
        elif draw < 0.85:
            found.append(f"/api/v1/topics?limit=50&sort=-updated_at&label=team%3Dt{n % 7}")
        elif draw < 0.9:
            found.append(f"/api/v1/topics?limit=50&q=s{n % 1000}")
        else:
            found.append(chance.choice(["/api/v1/nodes", "/api/v1/rate-limits", "/api/v1/system"]))
    return found


async def measure_reads(made: Platform, sizes: Sizes) -> tuple[dict[str, Any], dict[str, Any]]:
    """(reads, the floor: the same rate of requests that read nothing)."""
    chance = random.Random(7)
    await load.requests(made.url, made.cookie, paths_of(Sizes(seconds=2), chance)[:200], 100)
    reads = await load.requests(made.url, made.cookie, paths_of(sizes, chance), sizes.per_s)
    nothing = ["/health/live"] * int(sizes.per_s * min(5.0, sizes.seconds))
    floor = await load.requests(made.url, made.cookie, nothing, sizes.per_s)
    return reads, floor


async def measure_viewers(made: Platform, sizes: Sizes, viewers: int) -> dict[str, float]:
    """CPU of service and engine while so many watch, and how late their frames are."""
    async with load.watching(made.url, made.cookie, viewers, CHANNELS) as seen:
        await asyncio.sleep(2.0)
        seen.clear()
        own = resource.getrusage(resource.RUSAGE_SELF)
        began = time.monotonic()
        before = cpu_s(made.service), cpu_s(made.engine)
        await asyncio.sleep(sizes.seconds)
        spent_s = time.monotonic() - began
        after = cpu_s(made.service), cpu_s(made.engine)
        client = resource.getrusage(resource.RUSAGE_SELF)
        late = sorted(seen)
    found: dict[str, float] = {
        "service_cores": round((after[0] - before[0]) / spent_s, 4),
        "engine_cores": round((after[1] - before[1]) / spent_s, 4),
        "frames_per_s": round(len(seen) / spent_s, 1),
        "client_cores": round(
            (client.ru_utime + client.ru_stime - own.ru_utime - own.ru_stime) / spent_s, 4
        ),
    }
    if late:
        found["frame_late_p50_ms"] = round(late[len(late) // 2] * 1e3, 1)
        found["frame_late_p99_ms"] = round(late[int(len(late) * 0.99)] * 1e3, 1)
    return found


def measure(sizes: Sizes, directory: Path, note: Any) -> dict[str, Any]:
    """All of it."""
    with platform(directory) as made:
        note("idle")
        time.sleep(2.0)
        metrics: dict[str, Any] = {
            "idle_service_mb": resident_mb(made.service),
            "idle_cores": cores(made.service, 3.0),
        }
        note("apply")
        metrics |= measure_apply(made, sizes)
        metrics["engine_applied_after_s"] = wait_applied(made)
        note("reads")
        reads, floor = asyncio.run(measure_reads(made, sizes))
        metrics |= {f"read_{k}": v for k, v in reads.items()}
        metrics["service_mb"] = resident_mb(made.service)
        note("viewers")
        body = {
            "spec": {"topic": "md.0.s0", "messages_per_s": sizes.traffic_per_s, "running": True}
        }
        made.call("PUT", "/traffic/bench", body)
        time.sleep(12.0)
        for viewers in (0, 1, 20, sizes.viewers):
            found = asyncio.run(measure_viewers(made, sizes, viewers))
            metrics |= {f"{k}_{viewers}_viewers": v for k, v in found.items()}
    return {
        "bench": "control",
        "config": {**machine(), **vars(sizes), "channels": CHANNELS},
        "metrics": metrics,
        "floor": {f"read_{k}": v for k, v in floor.items()},
        "ratio": {"read_p99_ms": round(reads["p99_ms"] / max(floor["p99_ms"], 1e-9), 2)},
        "peers": {},
    }


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object on one line.")
@click.option("--topics", default=Sizes.topics, show_default=True)
@click.option("--seconds", default=Sizes.seconds, show_default=True, help="Of each measurement.")
@click.option("--viewers", default=Sizes.viewers, show_default=True)
def main(as_json: bool, topics: int, seconds: float, viewers: int) -> None:
    """Measure the control service on this machine, which should be quiet."""
    sizes = Sizes(topics=topics, documents=min(2000, topics), seconds=seconds, viewers=viewers)
    with tempfile.TemporaryDirectory(prefix="tc-bench-") as directory:
        Path(directory).chmod(0o755)
        outcome = measure(sizes, Path(directory), lambda what: click.echo(what, err=True))
    if as_json:
        click.echo(json.dumps(outcome))
        return
    for name, value in outcome["metrics"].items():
        click.echo(f"{name:32} {value}")


if __name__ == "__main__":
    main()
