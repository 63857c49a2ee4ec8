"""The map in docs/ARCHITECTURE.md: files that it names exist, and what it names in them, too."""

from __future__ import annotations

import ast
import re

import pytest

from tests.project import ROOT, files

PAGE = ROOT / "docs/ARCHITECTURE.md"
ENGINE = "engine/tidecast/"
NAMED = re.compile(r"`([a-z_]+(?:/[\w]+)*\.py)(?:: ([\w., ]+))?`")
PACKAGES = re.compile(r"^\| ((?:`[a-z_]+`(?:, )?)+) \|", re.MULTILINE)
ROOMS_MIN = 10


def names_in(text: str) -> set[str]:
    """Functions, classes, their methods and module variables."""
    found = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [
                n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            found |= {f"{node.name}.{n.name}" for n in methods}
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        found |= {n.id for each in targets for n in ast.walk(each) if isinstance(n, ast.Name)}
    return found


def wrong(page: str) -> list[str]:
    found = []
    for path, names in NAMED.findall(page):
        text = files().get(path if path.startswith(("backend/", "tests/")) else ENGINE + path)
        text = text if text is not None else files().get(path)
        if text is None:
            found.append(path)
        elif names:
            known = names_in(text)
            found += [f"{path}: {n}" for n in names.split(", ") if n not in known]
    return found


def test_what_the_map_names_exists() -> None:
    page = PAGE.read_text("utf-8")
    assert len(NAMED.findall(page)) > 30
    assert not wrong(page)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("`agents/nowhere.py`", "agents/nowhere.py"),
        ("`agents/run.py: run_nobody`", "agents/run.py: run_nobody"),
        ("`client/core/image.py: Image.take, Image.taken`", "client/core/image.py: Image.taken"),
    ],
)
def test_what_does_not_exist_is_found(text: str, missing: str) -> None:
    assert wrong(text) == [missing]


def test_every_package_has_its_sentence() -> None:
    folders = {
        path.removeprefix(ENGINE).partition("/")[0]
        for path in files()
        if path.startswith(ENGINE) and path.endswith("/__init__.py")
    }
    rows = PACKAGES.findall(PAGE.read_text("utf-8"))
    shown = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert folders - {"__init__.py", "testing"} <= shown


def test_every_package_of_a_package_has_its_words() -> None:
    """A row names the packages below its own, wherever they lie in it."""
    inner = [
        path.removeprefix(ENGINE).split("/")[:-1]
        for path in files()
        if path.startswith(ENGINE) and path.endswith("/__init__.py")
    ]
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if PACKAGES.match(line)]
    missing = [
        "/".join(path)
        for path in inner
        if len(path) > 1
        and path[0] not in ("testing", "bench")
        and not any(f"`{path[0]}`" in row and f"`{path[-1]}`" in row for row in rows)
    ]
    assert not missing


LIVE = ("From `publish`", "From the wire")
DURABLE = ("From `publish`", "From the ring to disk", "From disk")


def files_of_walk(page: str, legs: tuple[str, ...]) -> set[str]:
    """Files that legs of the walk name."""
    return _files_of(page, "### The way of a message", r"\n(?=From )", legs)


def files_of_opening(page: str, legs: tuple[str, ...]) -> set[str]:
    """Files that the steps of an opening name."""
    return _files_of(page, "### The way to open", r"\n(?=Opening |On the way)", legs)


def _files_of(page: str, heading: str, begin: str, legs: tuple[str, ...]) -> set[str]:
    section = page.partition(heading)[2].partition("\n### ")[0]
    found = [part for part in re.split(begin, section) if part.startswith(legs)]
    assert len(found) == len(legs)
    return {path for part in found for path, _ in NAMED.findall(part)}


def test_the_walk_of_a_message_is_short() -> None:
    """It was 21 files to a live subscriber and 30 to a durable ack, before there were packages."""
    page = PAGE.read_text("utf-8")
    assert 8 < len(files_of_walk(page, LIVE)) < 21
    assert 12 < len(files_of_walk(page, DURABLE)) < 30


OPENING = {
    ("Opening a publication",): 8,
    ("Opening a publication", "Opening a durable"): 11,
    ("Opening a subscription",): 10,
}


@pytest.mark.parametrize("legs", OPENING)
def test_the_page_counts_the_files_of_an_opening(legs: tuple[str, ...]) -> None:
    page = PAGE.read_text("utf-8")
    assert len(files_of_opening(page, legs)) == OPENING[legs]
    section = page.partition("### The way to open")[2]
    assert "passes 8 files, a durable one 11, a subscription 10" in section


def test_the_map_has_a_room_for_plausible_changes() -> None:
    page = PAGE.read_text("utf-8")
    rooms = page.partition("### Where is the room for")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\| [a-z]", rooms, re.MULTILINE)) - 1 >= ROOMS_MIN
