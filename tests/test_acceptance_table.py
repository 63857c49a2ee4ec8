"""The tables of acceptance tests and of findings: what they name exists, no part is left out.

A row that rests on long tests alone says so.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from tests.mutation.entries import MUTATIONS
from tests.project import ROOT as PROJECT
from tidecast.bench.commands import HELP

ROOT = Path(__file__).parent
TABLE = (ROOT / "README.md").read_text()
FINDINGS = (ROOT / "FINDINGS.md").read_text()
PARTS = {
    "FC": 16,
    "AR": 17,
    "AE": 16,
    "PY": 10,
    "F": 9,
    "BM": 3,
    "A": 8,
    "C": 8,
    "R": 5,
    "D": 10,
    "G": 9,
    "L": 12,
    "Q": 7,
    "P": 5,
}
"""How many ids each list of promises has. C: of streams and of the control service."""
BENCHES = {*HELP, "spark"}
REVIEWS = {
    "kill-": 7,
    "host-D": 8,
    "host-F": 13,
    "user-B": 9,
    "control-F": 7,
    "control-S": 18,
    "rest-H": 10,
    "rest-M": 9,
    "rest-L": 13,
    "page-H": 10,
    "page-M": 11,
    "page-L": 9,
    "engine-": 13,
    "tests-4.": 12,
    "tests-6.": 4,
}
"""How many findings each part of a review has."""
KEYS = {
    "power-A", "power-B", "power-C", "power-D", "user-B0", "control-low", "page-generated",
    "suite-misspelt", "suite-pauses", "suite-moves", "suite-plans",
    "suite-even",
    "suite-lag", "suite-memory", "suite-load", "suite-down", "suite-stop", "suite-starting",
    "archive-jobs",
    "suite-nodes", "races-secrets", "races-login", "races-rotation", "races-report", "races-locks",
    "races-audit", "races-tail", "races-watch", "races-stored", "races-notice", "races-services",
    "link-late", "link-disk", "races-answer", "kafka-offsets",
    "docs-readers", "docs-answers", "docs-waits",
    *(f"tests-M{n}" for n in
      ("05", "06", "07", 10, 13, 15, 16, 17, 18, 25, 27, 28, 30, 31, 32, 33, 34, 43, 44, 45, 47)),
}  # fmt: skip
"""Findings without a number of their own, and faults that no test of then found."""


def rows(table: str) -> list[list[str]]:
    """The cells of each row."""
    found = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in found]


@functools.cache
def defined() -> dict[str, bool]:
    """Every test that is defined: is each of that name a long one?"""
    found: dict[str, bool] = {}
    for path in ROOT.rglob("test_*.py"):
        text = path.read_text()
        if "mark.long" not in text:  # parsing takes 20 ms a file
            names = re.findall(r"^(?:async )?def (test_\w+)\(", text, re.MULTILINE)
            found |= dict.fromkeys(names, False)
            continue
        tree = ast.parse(text)
        module = any(
            isinstance(node, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)
            and "mark.long" in ast.unparse(node.value)
            for node in tree.body
        )
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                own = any(ast.unparse(d) == "pytest.mark.long" for d in node.decorator_list)
                found[node.name] = found.get(node.name, True) and (module or own)
    return found


def complaints(table: str) -> list[str]:
    """The faults of a table."""
    found = []
    for row in rows(table):
        if row[0] in ("id", "promise", "what"):
            continue
        proofs = row[-1]
        named = re.findall(r"`(test_\w+)`", proofs)
        found += [f"{name} does not exist" for name in named if name not in defined()]
        benches = re.findall(r"`bench ([\w-]+)`", proofs)
        found += [f"bench {name} does not exist" for name in benches if name not in BENCHES]
        if not (named or benches or "`python -m benchmarks." in proofs):
            found.append(f"{row[0]}: {row[1]}: no proof")
        long = bool(named) and all(defined().get(name, False) for name in named)
        if long != proofs.endswith("(long)"):
            found.append(f"{row[0]}: {row[1]}: " + ("says not (long)" if long else "is not long"))
    ids = {row[0] for row in rows(table)}
    for part, n in PARTS.items():
        found += [f"{part}{i} is left out" for i in range(1, n + 1) if f"{part}{i}" not in ids]
    return found


def of_the_page(proofs: str) -> list[str]:
    """Tests of the dashboard in a cell: ``FILE: START OF THE TITLE``."""
    return re.findall(r"`([\w-]+\.test\.tsx?: [^`]+)`", proofs)


def findings_complaints(table: str) -> list[str]:
    """The faults of a table of findings."""
    found, mutations = [], {each.name for each in MUTATIONS}
    for row in rows(table):
        if row[0] == "key":
            continue
        key, proofs = row[0], row[-1]
        named = re.findall(r"`(test_\w+)`", proofs)
        found += [f"{key}: {name} does not exist" for name in named if name not in defined()]
        for each in of_the_page(proofs):
            file, _, title = each.partition(": ")
            path = PROJECT / "frontend/test" / file
            if not path.is_file() or f'("{title}' not in path.read_text():
                found.append(f"{key}: {each} does not exist")
        faults = re.findall(r"`mutation ([\w-]+)`", proofs)
        found += [f"{key}: mutation {one} does not exist" for one in faults if one not in mutations]
        none = proofs.startswith("none: ")
        if not (named or none or of_the_page(proofs)):
            found.append(f"{key}: no test and no reason")
        alone = named and not none and not of_the_page(proofs)
        long = bool(alone) and all(defined().get(name, False) for name in named)
        if long != proofs.endswith("(long)"):
            found.append(f"{key}: " + ("says not (long)" if long else "is not long"))
    keys = {row[0] for row in rows(table)} - {"key"}
    due = KEYS | {f"{part}{n}" for part, count in REVIEWS.items() for n in range(1, count + 1)}
    found += [f"{key} is left out" for key in sorted(due - keys)]
    return found + [f"{key} is no finding" for key in sorted(keys - due)]


def test_every_finding_has_its_test() -> None:
    assert len(rows(FINDINGS)) > 150
    assert findings_complaints(FINDINGS) == []


def test_the_rules_of_findings_bite() -> None:
    for row, words in (
        ("| host-D1 | x | `test_that_nobody_wrote` |", "host-D1: test_that_nobody_wrote does not"),
        ("| host-D1 | x | `live.test.ts: nothing` |", "host-D1: live.test.ts: nothing does not"),
        ("| host-D1 | x | `nowhere.test.ts: a` |", "host-D1: nowhere.test.ts: a does not exist"),
        ("| host-D1 | x | `mutation nothing` |", "host-D1: mutation nothing does not exist"),
        ("| host-D1 | x | by hand |", "host-D1: no test and no reason"),
        ("| host-D1 | x | `test_pictures` |", "host-D1: says not (long)"),
        ("| host-D1 | x | `test_the_rules_bite` (long) |", "host-D1: is not long"),
        ("| host-D9 | x | none: a reason |", "host-D9 is no finding"),
    ):
        assert [each for each in findings_complaints(row) if each.startswith(words)], row
        assert "host-D2 is left out" in findings_complaints(row)
    good = "| host-D1 | x | `live.test.ts: draws a hole over a gap` |"
    assert not [each for each in findings_complaints(good) if "host-D1" in each]


def test_every_test_that_the_table_names_exists() -> None:
    assert len(rows(TABLE)) > 200
    assert complaints(TABLE) == []


def test_every_bench_is_in_the_table() -> None:
    assert set(re.findall(r"`bench ([\w-]+)`", TABLE)) >= BENCHES


def test_the_rules_bite() -> None:
    fast, long = "test_the_rules_bite", "test_pictures"
    for row, words in (
        ("| FC1 | x | `test_that_nobody_wrote` |", "test_that_nobody_wrote does not exist"),
        ("| FC1 | x | `bench nothing` |", "bench nothing does not exist"),
        ("| FC1 | x | by hand |", "FC1: x: no proof"),
        (f"| FC1 | x | `{long}` |", "FC1: x: says not (long)"),
        (f"| FC1 | x | `{fast}`, `{long}` (long) |", "FC1: x: is not long"),
    ):
        assert words in complaints(row)
        assert "FC2 is left out" in complaints(row)
    assert "FC1: x: says not (long)" not in complaints(f"| FC1 | x | `{fast}`, `{long}` |")
