"""A mutation of the code, and its application to a copy of the project."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mutation:
    """One deliberate fault: ``old`` stands once in ``file`` and is replaced by ``new``."""

    name: str
    file: str
    """Path from the project's root."""
    old: str
    new: str
    tests: tuple[str, ...]
    """Ids of pytest of which at least one must fail."""
    breaks: str
    """The property that no longer holds, in one sentence."""
    equivalent: str = ""
    """Why no test can fail. Such an entry documents the code and is not run."""


def problem_of(mutation: Mutation, root: Path) -> str:
    """Why a mutation does not apply to the project at ``root``; "" when it does."""
    path = root / mutation.file
    if not path.is_file():
        return f"{mutation.file} does not exist"
    n = path.read_text().count(mutation.old)
    if n != 1:
        return f"its text occurs {n} times in {mutation.file}, not once"
    if mutation.old == mutation.new:
        return "it changes nothing"
    return ""


def apply(mutation: Mutation, root: Path) -> str:
    """Change the file in the copy at ``root``; its text before. Raises ValueError."""
    problem = problem_of(mutation, root)
    if problem:
        raise ValueError(f"{mutation.name}: {problem}")
    path = root / mutation.file
    before = path.read_text()
    path.write_text(before.replace(mutation.old, mutation.new))
    # Bytecode is found by second and size of its source, which a mutation may leave as they were.
    for stale in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        stale.unlink()
    return before
