"""Run benches and write benchmarks/RESULTS.md: figures, machine, date, commands, peers.

``python -m benchmarks.report run [NAME...]`` runs benches and keeps their JSON in benchmarks/out;
all of them take 12 minutes at most: what comes last is left out when the time is over, and said.
``python -m benchmarks.report write`` writes RESULTS.md, and the table in README.md, from what is
kept there. Peers are run if ``python benchmarks/peers/install.py`` has installed them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
BUDGET_S, LEAST_S = 690.0, 20.0
COMPILE_S = 600.0
"""After an edit of the engine kernels are compiled first; else that takes some seconds."""
README = HERE.parent / "README.md"
TABLE_BEGIN, TABLE_END = "<!-- figures: python -m benchmarks.report write -->", "<!-- end -->"
LIMITS_S = {
    "throughput": 280.0,
    "throughput-secure": 280.0,
    "ipc": 200.0,
    "latency": 250.0,
    "python": 160.0,
    "fanout": 120.0,
    "loss-5": 150.0,
    "spark": 240.0,
    "control": 150.0,
}
LIMIT_S = 100.0
KAFKA_JARS = HERE / "peers" / ".cache" / "kafka"
KAFKA = ("--kafka", str(KAFKA_JARS.relative_to(HERE.parent))) if KAFKA_JARS.is_dir() else ()
BROKER = tuple(
    word for each in (os.environ.get("KAFKA_SERVERS"),) if each for word in ("--servers", each)
)
"""A Kafka broker to compare with, HOST:PORT of the variable."""
# The most telling ones first: time may run out.
RUNS: dict[str, tuple[str, ...]] = {
    "throughput": ("tidecast", "bench", "throughput", "--peers", "--json"),
    "throughput-engine": ("tidecast", "bench", "throughput", "--shape", "engine", "--json"),
    "seal": ("tidecast", "bench", "seal", "--json"),
    "throughput-secure": ("tidecast", "bench", "throughput", "--secure", "--json"),
    "ipc": ("tidecast", "bench", "ipc", "--peers", "--json"),
    "latency": ("tidecast", "bench", "latency", "--peers", "--json"),
    "python": ("tidecast", "bench", "python", "--peers", "--json"),
    "request": ("tidecast", "bench", "request", "--peers", "--json"),
    "loss-5": ("tidecast", "bench", "loss", "--drop", "0.05", "--peers", "--json"),
    "veth": ("python", "-m", "benchmarks.veth", "--json"),
    "loss-1": ("tidecast", "bench", "loss", "--drop", "0.01", "--json"),
    "loss-20": ("tidecast", "bench", "loss", "--drop", "0.2", "--json"),
    "idle": ("tidecast", "bench", "idle", "--json"),
    "fanout": ("tidecast", "bench", "fanout", "--json"),
    "durable": ("tidecast", "bench", "durable", "--peers", "--json"),
    "consume": ("tidecast", "bench", "consume", "--peers", "--json"),
    "pausing": ("tidecast", "bench", "pausing", "--json"),
    "slow-consumer": ("tidecast", "bench", "slow-consumer", "--json"),
    "streams": ("tidecast", "bench", "streams", "--json"),
    "tables": ("tidecast", "bench", "tables", "--json"),
    "kafka": ("tidecast", "bench", "kafka", *BROKER, "--json"),
    "start": ("tidecast", "bench", "start", "--json"),
    "control": ("python", "-m", "benchmarks.control", "--seconds", "5", "--json"),
    "recovery": ("tidecast", "bench", "recovery", "--gigabytes", "10", "--json"),
    "throughput-8192": ("tidecast", "bench", "throughput", "--packet-bytes", "8192", "--json"),
    "spark": (
        "tidecast",
        "bench",
        "spark",
        "--only",
        "source",
        "--only",
        "stream",
        "--only",
        "sink",
        "--only",
        "gateway",
        "--json",
        *KAFKA,
    ),
    "throughput-61440": ("tidecast", "bench", "throughput", "--packet-bytes", "61440", "--json"),
}
if BROKER:
    RUNS["kafka-storage"] = ("tidecast", "bench", "kafka-storage", *BROKER, "--json")
README_FIGURES = (
    ("throughput", "msgs_per_s", "messages/s"),
    ("throughput-engine", "msgs_per_s", "messages/s"),
    ("veth", "msgs_per_s", "messages/s"),
    ("latency", "rtt_p50_us", "round trip p50, us"),
    ("latency", "rtt_p999_us", "round trip p99.9, us"),
    ("ipc", "msgs_per_s", "messages/s"),
    ("ipc", "rtt_p50_us", "round trip p50, us"),
    ("request", "rtt_p50_us", "request and reply p50, us"),
    ("request", "asyncio_rtt_p50_us", "request and reply p50 with asyncio, us"),
    ("python", "ipc_two_one_msgs_per_s", "messages/s, one by one, ipc"),
    ("python", "udp_batch_array_msgs_per_s", "messages/s, batches of arrays, UDP"),
    ("python", "ipc_two_batch_list_msgs_per_s", "messages/s, batches of lists, ipc"),
    ("python", "ipc_two_batch_array_msgs_per_s", "messages/s, batches of arrays, ipc"),
    ("python", "ipc_two_batch_in_place_msgs_per_s", "messages/s, batches left in place, ipc"),
    ("loss-5", "msgs_per_s", "messages/s at 5 % loss"),
    ("loss-5", "at_1_percent_rtt_p999_us", "round trip p99.9 at 1 % loss, us"),
    ("durable", "publish_batched_msgs_per_s", "messages/s, published in batches and acked"),
    ("consume", "batches_msgs_per_s", "messages/s, consumed in batches and acked"),
    ("consume", "single_msgs_per_s", "messages/s, consumed one by one and acked"),
)
PEER_NAMES = {
    "asyncio_rtt_p50_us": "rtt_p50_us",
    "ipc_two_one_msgs_per_s": "msgs_per_s",
    "ipc_two_batch_list_msgs_per_s": "msgs_per_s",
    "ipc_two_batch_array_msgs_per_s": "msgs_per_s",
    "udp_batch_array_msgs_per_s": "msgs_per_s",
    "ipc_two_batch_in_place_msgs_per_s": "msgs_per_s",
    "at_1_percent_rtt_p999_us": "rtt_p999_us",
    "publish_batched_msgs_per_s": "msgs_per_s",
    "batches_msgs_per_s": "msgs_per_s",
    "single_msgs_per_s": "msgs_per_s",
}
HEAD_FIGURES = (
    "msgs_per_s",
    "rtt_p50_us",
    "rtt_p99_us",
    "rtt_p999_us",
    "source_rows_per_s",
    "sink_rows_per_s",
    "produced_records_per_s",
    "fetched_records_per_s",
    "stored_msgs_per_s",
    "read_msgs_per_s",
    "paused_fetched_ratio",
    "paused_msgs_per_s",
)


def run(names: list[str]) -> None:
    """Run benches one after another; a failed one is said, and keeps its older figures."""
    OUT.mkdir(exist_ok=True)
    scripts = Path(sys.executable).parent
    _bounded([str(scripts / "tidecast"), "bench", "latency", "--rounds", "200"], COMPILE_S)
    ends_s = time.monotonic() + BUDGET_S
    for name in names or list(RUNS):
        left_s = min(ends_s - time.monotonic(), LIMITS_S.get(name, LIMIT_S))
        if left_s < LEAST_S:
            sys.stdout.write(f"{name}: left out, the {BUDGET_S:g} s are over\n")
            continue
        code, said, problem = _bounded([str(scripts / RUNS[name][0]), *RUNS[name][1:]], left_s)
        line = said.strip().rpartition("\n")[2]
        if code != 0 or not line.startswith("{"):
            sys.stdout.write(f"{name}: failed: {problem.strip()[-300:]}\n")
            continue
        outcome = json.loads(line)
        outcome["command"] = " ".join(RUNS[name])
        outcome["date"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        (OUT / f"{name}.json").write_text(json.dumps(outcome))
        sys.stdout.write(f"{name}: {json.dumps(outcome['metrics'])[:200]} {outcome['ratio']}\n")
        sys.stdout.flush()


def _bounded(command: list[str], limit_s: float) -> tuple[int, str, str]:
    """(exit code, output, errors); after ``limit_s`` it and what it has started is ended."""
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE.parent,
        start_new_session=True,
    )
    try:
        said, problem = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.communicate(timeout=10.0)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
        return 1, "", f"not done within {limit_s:.0f} s"
    return child.returncode, said, problem


def _figure(value: Any) -> str:
    if isinstance(value, float) and abs(value) < 1000:
        return f"{value:g}"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def _peer_rows(peers: dict[str, Any]) -> list[str]:
    rows = []
    for peer, outcomes in peers.items():
        if peer == "ratio":
            shown = ", ".join(f"{key} {_figure(value)}" for key, value in outcomes.items())
            rows.append(f"| ratio, ours to theirs | | {shown} |")
            continue
        for outcome in outcomes:
            config = " ".join(
                f"{k}={v}"
                for k, v in outcome.get("config", {}).items()
                if k not in ("seconds", "warmup_s", "timeout_s", "rounds")
            )
            metrics = outcome.get("metrics", {})
            shown = ", ".join(f"{k} {_figure(metrics[k])}" for k in HEAD_FIGURES if k in metrics)
            rows.append(f"| {peer} | {config} | {shown or outcome.get('error', '')[:80]} |")
    return rows


def _section(name: str, outcome: dict[str, Any]) -> list[str]:
    config = outcome["config"]
    when = f"{outcome['date']}, load before the run {config.get('load', '?')}"
    lines = [
        f"## {name}",
        "",
        f"`{outcome['command']}`, {when}",
        "",
        "| figure | Tidecast | floor | ratio |",
        "|---|---|---|---|",
    ]
    for key, value in outcome["metrics"].items():
        short = key.removeprefix("rtt_").removesuffix("_us")
        ratio = outcome["ratio"].get(key, outcome["ratio"].get(short, ""))
        floor = outcome["floor"].get(key, "")
        lines.append(f"| {key} | {_figure(value)} | {_figure(floor)} | {_figure(ratio)} |")
    peers = _peer_rows(outcome.get("peers", {}))
    if peers:
        lines += ["", "| peer, same run | configuration | figures |", "|---|---|---|", *peers]
    return [*lines, ""]


def _older_sections() -> dict[str, list[str]]:
    """The sections of RESULTS.md by the names of benches."""
    found: dict[str, list[str]] = {}
    section: list[str] = []
    for line in (HERE / "RESULTS.md").read_text().splitlines():
        if line.startswith("## "):
            section = found.setdefault(line.removeprefix("## "), [])
        section.append(line)
    return found


def write() -> None:
    """Write RESULTS.md from the kept outcomes; of benches without one it says what it said."""
    kept = {p.stem: json.loads(p.read_text()) for p in sorted(OUT.glob("*.json"))}
    if not kept:
        raise SystemExit("nothing to write: run `python -m benchmarks.report run` first")
    config = next(iter(kept.values()))["config"]
    about = (
        f"Machine: {config['cores']} cores, {config['machine']}, Linux {config['kernel']}, Python "
        f"{config['python']}. Written by `python -m benchmarks.report write`. The floor is the "
        "same system calls or memory operations with no protocol, taken in the same run; ratios "
        "travel between machines, absolute figures do not. Loopback never splits the bundles of "
        "segmentation offload: `veth` below does, and is the honest figure for a real wire. A "
        "section keeps its date until its bench is run again, maybe on another host."
    )
    lines = ["# Results", "", about, ""]
    older = _older_sections()
    for name in [n for n in {**RUNS, **older} if n in kept or n in older]:
        section = _section(name, kept[name]) if name in kept else older[name]
        lines += [*section, ""] if section[-1] else section
    (HERE / "RESULTS.md").write_text("\n".join(lines))
    text = README.read_text()
    if TABLE_BEGIN in text:
        before, _, rest = text.partition(TABLE_BEGIN)
        table_of_before, _, after = rest.partition(TABLE_END)
        table = "\n".join(_readme_table(kept, table_of_before.splitlines()))
        README.write_text(f"{before}{TABLE_BEGIN}\n{table}\n{TABLE_END}{after}")


def _best_peer(outcome: dict[str, Any], figure: str, lowest: bool, near: bool) -> str:
    """The best peer's figure of the same run, and whose it is; ``near``: over shared memory.

    Shared memory is compared with shared memory, a network with a network.
    """
    found = [
        (each["metrics"][figure], peer)
        for peer, runs in outcome.get("peers", {}).items()
        for each in runs
        if each.get("metrics", {}).get(figure)
        and (each.get("config", {}).get("channel") == "ipc") == near
    ]
    if not found:
        return ""
    value, peer = min(found) if lowest else max(found)
    return f"{_figure(value)} ({peer})"


def _readme_table(kept: dict[str, Any], before: list[str]) -> list[str]:
    lines = [
        "| bench | figure | Tidecast | raw floor | best peer, any packet size |",
        "|---|---|---|---|---|",
    ]
    for name, figure, label in README_FIGURES:
        outcome = kept.get(name)
        if outcome is None:
            lines += [row for row in before if row.startswith(f"| {name} | {label} |")]
            continue
        if figure not in outcome["metrics"]:
            continue
        floor = outcome["floor"].get(figure, "")
        near = name == "ipc" or figure.startswith("ipc")
        peer = _best_peer(outcome, PEER_NAMES.get(figure, figure), figure.endswith("_us"), near)
        value = _figure(outcome["metrics"][figure])
        lines.append(f"| {name} | {label} | {value} | {_figure(floor)} | {peer} |")
    return lines


def main() -> None:
    """Command line."""
    verb, *names = sys.argv[1:] or ["write"]
    if verb == "run":
        run(names)
    else:
        write()


if __name__ == "__main__":
    main()
