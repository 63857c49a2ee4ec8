"""Run benches and write benchmarks/RESULTS.md: figures, machine, date, commands, peers.

``python -m benchmarks.report run [NAME...]`` runs benches and keeps their JSON in benchmarks/out;
``python -m benchmarks.report write`` writes RESULTS.md from what is kept there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
RUNS: dict[str, tuple[str, ...]] = {
    "floor": ("tidecast", "bench", "floor", "--json"),
    "throughput": ("tidecast", "bench", "throughput", "--json"),
    "throughput-8192": ("tidecast", "bench", "throughput", "--packet-bytes", "8192", "--json"),
    "throughput-61440": ("tidecast", "bench", "throughput", "--packet-bytes", "61440", "--json"),
    "throughput-engine": ("tidecast", "bench", "throughput", "--shape", "engine", "--json"),
    "python": ("tidecast", "bench", "python", "--peers", "--json"),
    "latency": ("tidecast", "bench", "latency", "--peers", "--json"),
    "ipc": ("tidecast", "bench", "ipc", "--peers", "--json"),
    "fanout": ("tidecast", "bench", "fanout", "--json"),
    "loss-1": ("tidecast", "bench", "loss", "--drop", "0.01", "--json"),
    "loss-5": ("tidecast", "bench", "loss", "--drop", "0.05", "--peers", "--json"),
    "loss-20": ("tidecast", "bench", "loss", "--drop", "0.2", "--json"),
    "idle": ("tidecast", "bench", "idle", "--json"),
    "veth": ("python", "-m", "benchmarks.veth", "--json"),
}
HEAD_FIGURES = ("msgs_per_s", "rtt_p50_us", "rtt_p99_us", "rtt_p999_us")


def run(names: list[str]) -> None:
    """Run benches one after another; a failed one is said, and keeps its older figures."""
    OUT.mkdir(exist_ok=True)
    scripts = Path(sys.executable).parent
    for name in names or list(RUNS):
        command = [str(scripts / RUNS[name][0]), *RUNS[name][1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parent)
        line = done.stdout.strip().rpartition("\n")[2]
        if done.returncode != 0 or not line.startswith("{"):
            sys.stdout.write(f"{name}: failed: {done.stderr.strip()[-300:]}\n")
            continue
        outcome = json.loads(line)
        outcome["command"] = " ".join(RUNS[name])
        outcome["date"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        (OUT / f"{name}.json").write_text(json.dumps(outcome))
        sys.stdout.write(f"{name}: {json.dumps(outcome['metrics'])[:200]} {outcome['ratio']}\n")


def _figure(value: Any) -> str:
    if isinstance(value, float) and abs(value) < 1000:
        return f"{value:g}"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def _peer_rows(peers: dict[str, Any]) -> list[str]:
    rows = []
    for peer, outcomes in peers.items():
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


def write() -> None:
    """Write RESULTS.md from the kept outcomes."""
    kept = {p.stem: json.loads(p.read_text()) for p in sorted(OUT.glob("*.json"))}
    if not kept:
        raise SystemExit("nothing to write: run `python -m benchmarks.report run` first")
    config = next(iter(kept.values()))["config"]
    about = (
        f"Machine: {config['cores']} cores, {config['machine']}, Linux {config['kernel']}, Python "
        f"{config['python']}. Written by `python -m benchmarks.report write`. The floor is the "
        "same system calls or memory operations with no protocol, taken in the same run; ratios "
        "travel between machines, absolute figures do not. Loopback never splits the bundles of "
        "segmentation offload: `veth` below does, and is the honest figure for a real wire."
    )
    lines = ["# Results", "", about, ""]
    for name in [n for n in RUNS if n in kept]:
        lines += _section(name, kept[name])
    (HERE / "RESULTS.md").write_text("\n".join(lines))


def main() -> None:
    """Command line."""
    verb, *names = sys.argv[1:] or ["write"]
    if verb == "run":
        run(names)
    else:
        write()


if __name__ == "__main__":
    main()
