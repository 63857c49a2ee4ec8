"""The output of `tidecast bench NAME --json` is as in docs/BENCHMARKS.md: others script on it."""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from click.testing import CliRunner
from markdown_it import MarkdownIt

from tests.project import ROOT, select
from tests.support.nats_server import NatsServer, nats_server
from tests.support.nats_server import missing as nats_missing
from tidecast.bench import benches, commands, consuming, kafka, kafka_storage, pulling
from tidecast.bench.brokers import feeds, jetstream
from tidecast.bench.commands import HELP, cli

PAGE = (ROOT / "docs" / "BENCHMARKS.md").read_text()
ALWAYS = {"bench", "config", "metrics", "floor", "ratio", "peers"}
MACHINE = {"cores", "machine", "kernel", "python", "load"}
NAMES = {*HELP, "spark"}
UNITS = {
    "_in_60_s": "count",
    "_per_s": "a second",
    "_us": "us",
    "_s": "s",
    "_bytes": "bytes",
    "_bytes_max": "bytes",
    "_mb": "MB",
    "_percent": "%",
    "_share": "share",
    "_ratio": "share",
}
"""The unit that a name ends with; longest first. Other units: count, share, ns."""
QUICK = {
    "floor": ["--seconds", "0.2"],
    "throughput": ["--messages", "1000", "--seconds", "0.5"],
    "python": ["--messages", "1000"],
    "latency": ["--rounds", "500"],
    "ipc": ["--messages", "1000", "--rounds", "100"],
    "request": ["--rounds", "100"],
    "fanout": ["--messages", "1000"],
    "loss": ["--messages", "1000"],
    "idle": ["--seconds", "0.2"],
    "durable": ["--messages", "1000"],
    "gateway": ["--messages", "1000"],
    "recovery": ["--gigabytes", "0.01"],
    "consume": ["--records", "1000", "--streams", "10"],
    "pausing": ["--records", "1000", "--seconds", "0.1", "--bm2-records", "1000"],
    "slow-consumer": ["--records", "1000", "--healthy", "2"],
    "kafka": ["--records", "10000", "--queues", "2"],
    "kafka-storage": ["--messages", "2000", "--queues", "2"],
    "jetstream": ["--messages", "2000", "--queues", "2"],
    "seal": ["--packet-bytes", "1400"],
    "start": [],
    "tables": ["--messages", "20000"],
    "streams": ["--records", "1000", "--streams", "20"],
    "spark": ["--rows", "10000", "--rollup-rows", "10000"],
}
"""Options with which a bench is over soon; its figures say nothing then."""


@dataclass
class Contract:
    """The documented keys of one bench: unit by ``area.key``."""

    units: dict[str, str] = field(default_factory=dict)
    ratios: dict[str, str] = field(default_factory=dict)
    """Ratio -> the figure that it is of, in metrics and floor."""


def expanded(key: str, values: dict[str, list[str]]) -> Iterator[tuple[str, dict[str, str]]]:
    """A key with ``<name>`` in it, for each value of the name."""
    names = re.findall(r"<(\w+)>", key)
    for each in itertools.product(*(values[name] for name in names)):
        chosen = dict(zip(names, each, strict=True))
        yield re.sub(r"<(\w+)>", lambda found: chosen[found[1]], key), chosen  # noqa: B023


@functools.cache
def contracts() -> dict[str, Contract]:
    """The tables of the page, by the bench of the heading above them."""
    found: dict[str, Contract] = {}
    name, values = "", dict[str, list[str]]()
    for line in PAGE.splitlines():
        if line.startswith("## "):
            name, values = line.removeprefix("## ").strip("`"), {}
            if name in NAMES:
                found[name] = Contract()
        elif line.startswith("`<") and name in found:
            placeholder, *each = re.findall(r"`([^`]+)`", line)
            values[placeholder.strip("<>")] = each
        elif line.startswith("| `") and name in found:
            key, unit, meaning = (cell.strip() for cell in line.strip("|").split("|"))
            of = re.search(r"ours / floor of `([\w<>]+)`", meaning)
            for one, chosen in expanded(key.strip("`"), values):
                found[name].units[one] = unit
                if of:
                    figure, _ = next(expanded(of[1], {k: [v] for k, v in chosen.items()}))
                    found[name].ratios[one.removeprefix("ratio.")] = figure
    return found


def test_figures_of_peers_and_ratios_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"config": {"servers": "h:1"}, "metrics": {"read_msgs_per_s": 2000}}
    failed = {"config": {"size": 1}, "error": "it ended"}
    peers = {"kafka": [figures], "other": [failed], "ratio": {"read_msgs_per_s": 5.25}}
    shown = {"bench": "kafka", "metrics": {"read_msgs_per_s": 10_500}, "floor": {}, "ratio": {}}
    commands._show({**shown, "peers": peers})
    rows = [line for line in capsys.readouterr().out.splitlines() if "\u2502" in line]
    assert any(all(x in row for x in ("kafka", "servers=h:1", "2,000", "5.25")) for row in rows)
    assert any("it ended" in row for row in rows)
    commands._show({**shown, "peers": {}})
    assert "peers" not in capsys.readouterr().out


def test_every_bench_is_documented_with_units() -> None:
    assert set(contracts()) == NAMES == set(QUICK)
    wrong = []
    for name, contract in contracts().items():
        assert contract.units, name
        for key, unit in contract.units.items():
            area, _, figure = key.partition(".")
            if area == "ratio":
                expected = "share"
            else:
                ending = next((e for e in UNITS if figure.endswith(e)), "")
                expected = "ns" if "_ns_per_" in figure else UNITS.get(ending, "count")
            if unit != expected and not (expected == "count" and unit == "share"):
                wrong.append(f"{name}: {key}: {unit}, and its name says {expected}")
    assert not wrong, "\n".join(wrong)


def problems_of(name: str, outcome: dict[str, Any]) -> list[str]:
    """Where an outcome differs from its contract."""
    contract, found = contracts()[name], []
    extra = set(outcome) - ALWAYS - {"histograms_us"}
    if extra or not set(outcome) >= ALWAYS or outcome["bench"] != name:
        found.append(f"keys {sorted(outcome)}")
    if not set(outcome["config"]) >= MACHINE:
        found.append(f"config lacks {sorted(MACHINE - set(outcome['config']))}")
    printed = {
        f"{area}.{key}": value
        for area in ("metrics", "floor", "ratio")
        for key, value in outcome[area].items()
    }
    found += [f"{key} is not documented" for key in printed.keys() - contract.units.keys()]
    found += [f"{key} is not printed" for key in contract.units.keys() - printed.keys()]
    for key, value in printed.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and math.isfinite(value) and value >= 0):
            found.append(f"{key}: {value!r} is no plain number")
    for ratio, figure in contract.ratios.items():
        ours, floor = outcome["metrics"].get(figure), outcome["floor"].get(figure)
        if not (ours and floor):
            continue
        shown = outcome["ratio"].get(ratio, -1)
        if not math.isclose(shown, ours / floor, rel_tol=0.01, abs_tol=1e-3):
            found.append(f"ratio.{ratio} is not {figure}, ours / floor")
    return found


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    if nats_missing():
        pytest.skip(nats_missing())
    with nats_server() as made:
        yield made


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", QUICK)
def test_a_bench_prints_what_is_documented(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if name == "spark":
        pytest.importorskip("pyspark")
    options = list(QUICK[name])
    if name == "kafka-storage":
        options += ["--servers", request.getfixturevalue("real_kafka").address]
    if name == "jetstream":
        options += ["--servers", request.getfixturevalue("nats").address]
    for module, setting, n in (
        (benches, "TURNS", 1),
        (benches, "IPC_TURNS", 1),
        (benches, "LOSS_ROUNDS", 500),
        (consuming, "TURNS", 1),
        (pulling, "TURNS", 1),
        (kafka, "TURNS", 1),
        (kafka, "ROUNDS", 20),
        (kafka_storage, "TURNS", 1),
        (kafka_storage, "CONFLUENT_FETCH", 100),
        (jetstream, "TURNS", 1),
        (feeds, "PAUSED_RECORDS", 20),
        (feeds, "PAUSED_POLLS", 10),
    ):
        monkeypatch.setattr(module, setting, n)
    run = CliRunner().invoke(cli, [name, "--json", *options])
    assert run.exit_code == 0, run.output
    *_, last = run.stdout.splitlines()
    assert problems_of(name, json.loads(last)) == []


def test_a_difference_is_found() -> None:
    outcome: dict[str, Any] = {
        "bench": "floor",
        "config": dict.fromkeys(MACHINE),
        "ratio": {},
        "peers": {},
        "metrics": dict.fromkeys(k.partition(".")[2] for k in contracts()["floor"].units),
    }
    outcome["metrics"] = dict.fromkeys(outcome["metrics"], 1)
    outcome["floor"] = dict(outcome["metrics"])
    assert problems_of("floor", outcome) == []
    outcome["metrics"]["msgs_per_s"] = "1"
    outcome["floor"]["new"] = 1
    del outcome["config"]["load"]
    assert problems_of("floor", outcome) == [
        "config lacks ['load']",
        "floor.new is not documented",
        "metrics.msgs_per_s: '1' is no plain number",
    ]


# --- claims -----------------------------------------------------------------------------------
CLAIM = re.compile(r"\d\s?(?:[kM]|million)?\s?(?:messages|msgs|records|rows|requests)?/s\b")
BENCH = re.compile(r"\bbench ([a-z-]+)|\bbenchmarks\.(\w+)|benchmarks/RESULTS\.md")
PAGES = [(p, t) for p, t in select(".md", under=("README.md", "docs/")) if "/adr/" not in p]


def sections(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each part of a page between headings; code is no heading."""
    lines = text.splitlines()
    starts = [
        (token.map or [0])[0]
        for token in MarkdownIt("commonmark").parse(text)
        if token.type == "heading_open"
    ]
    for first, end in itertools.pairwise([0, *starts, len(lines)]):
        yield first + 1, "\n".join(lines[first:end])


def unproven(path: str, text: str) -> list[str]:
    """Sections that claim a rate and name no bench; benches that do not exist."""
    found = []
    for line, section in sections(text):
        if CLAIM.search(section) and not BENCH.search(section):
            claim = CLAIM.search(section)
            found.append(f"{path}:{line}: {claim and claim.group()!r}: names no bench")
    found += [
        f"{path}: there is no bench {bench}"
        for bench in re.findall(r"tidecast bench ([a-z-]+)", text)
        if bench not in NAMES | {"all"}
    ]
    found += [
        f"{path}: there is no benchmarks.{module}"
        for module in re.findall(r"python -m benchmarks\.(\w+)", text)
        if not (ROOT / "benchmarks" / f"{module}.py").exists()
    ]
    return found


def test_every_claim_names_a_bench() -> None:
    assert sum(bool(CLAIM.search(text)) for _, text in PAGES) >= 2, "claims are recognised"
    assert [found for path, text in PAGES for found in unproven(path, text)] == []


def test_a_claim_without_a_bench_is_found() -> None:
    assert unproven("x.md", "# A\n\nIt does 3 M messages/s.\n\n# B\n\n`tidecast bench floor`\n")
    assert unproven("x.md", "`tidecast bench fast`\n")
    assert not unproven("x.md", "# A\n\n3 M messages/s (`tidecast bench floor`)\n")
