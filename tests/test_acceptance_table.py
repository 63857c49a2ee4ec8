"""The table of acceptance tests: what it names exists, no part is left out, long rows say so."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from tidecast.bench.commands import HELP

ROOT = Path(__file__).parent
TABLE = (ROOT / "README.md").read_text()
PARTS = {
    "FC": 16, "AR": 17, "AE": 16, "PY": 10, "F": 9, "BM": 3, "A": 8, "C": 8, "R": 5, "D": 10,
    "G": 9, "L": 12, "Q": 7, "P": 5,
}  # fmt: skip
"""How many ids each list of promises has. C: of streams and of the control service."""
BENCHES = {*HELP, "spark"}


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
    """What is wrong with a table."""
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
