"""benchmarks/RESULTS.md and the README's table: what a run does not renew stays as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import report


def outcome(value: float, date: str) -> dict[str, Any]:
    config = {"cores": 2, "machine": "x86_64", "kernel": "6.18", "python": "3.11"}
    return {
        "command": "tidecast bench",
        "date": date,
        "config": config,
        "ratio": {},
        "floor": {},
        "metrics": {"msgs_per_s": value, "publish_batched_msgs_per_s": value},
    }


def test_a_bench_that_was_not_run_keeps_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, readme, out = tmp_path / "RESULTS.md", tmp_path / "README.md", tmp_path / "out"
    out.mkdir()
    results.write_text("# Results\n\n## by-hand\n\nno run writes this\n\n")
    readme.write_text(f"before\n{report.TABLE_BEGIN}\n{report.TABLE_END}\nafter\n")
    for name, value in (("HERE", tmp_path), ("README", readme), ("OUT", out)):
        monkeypatch.setattr(report, name, value)
    for name in ("throughput", "durable"):
        (out / f"{name}.json").write_text(json.dumps(outcome(1_000.0, "older")))
    report.write()
    both = results.read_text(), readme.read_text()
    (out / "throughput.json").unlink()
    report.write()
    assert (results.read_text(), readme.read_text()) == both
    (out / "durable.json").write_text(json.dumps(outcome(2_000.0, "newer")))
    report.write()
    assert [line for line in results.read_text().splitlines() if line.startswith("`tidecast")] == [
        "`tidecast bench`, older, load before the run ?",
        "`tidecast bench`, newer, load before the run ?",
    ]
    rows = [row.split(" | ") for row in readme.read_text().splitlines() if "messages/s" in row]
    assert [row[2] for row in rows] == ["1,000", "2,000"]
    assert readme.read_text().endswith("after\n")
    assert results.read_text().count("## by-hand\n\nno run writes this\n") == 1
