"""The project's own text files, for the tests that hold its rules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SKIPPED_DIRS = {
    *("__pycache__", "node_modules", "dist", "build", "site", "out", "static", "generated"),
}
KEPT_DOT_NAMES = {".ci", ".github", ".gitignore", ".npmrc"}
CODE = {".py", ".ts", ".tsx", ".java", ".sh", ".css"}
TEXT = CODE | {
    ".lock",
    ".conf",
    ".md",
    ".toml",
    ".yaml",
    ".yml",
    ".json",
    ".cfg",
    ".ini",
    ".txt",
    ".html",
    ".svg",
}

Rule = Callable[[str, str], list[str]]
"""(path relative to the root, text) -> complaints, each with a line where there is one."""


def _walk(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        hidden = path.name.startswith(".") and path.name not in KEPT_DOT_NAMES
        if hidden or path.is_symlink() or path.name.endswith(".egg-info"):
            continue
        if path.is_file():
            yield path
        elif path.name not in SKIPPED_DIRS:
            yield from _walk(path)


def is_text(path: Path) -> bool:
    return path.suffix in TEXT or path.suffix == ""


@functools.cache
def files() -> dict[str, str]:
    """Every text file of the project, by its path relative to the root."""
    found = {}
    for path in _walk(ROOT):
        if is_text(path):
            found[path.relative_to(ROOT).as_posix()] = path.read_text("utf-8", "replace")
    return found


def select(*suffixes: str, under: tuple[str, ...] = ("",)) -> Iterator[tuple[str, str]]:
    return ((p, t) for p, t in files().items() if p.endswith(suffixes) and p.startswith(under))


def complaints(rule: Rule, chosen: Iterable[tuple[str, str]]) -> str:
    found = [f"{path}: {what}" for path, text in chosen for what in rule(path, text)]
    return "\n".join(dict.fromkeys(found))
