"""Run mutations in a copy of the project, each with a cache of kernels of its own.

Kernels are cached by a digest of their sources, so a mutated one is compiled again and the others
are found. What a mutation compiled is thrown away with its cache: a module keeps few builds, and
the mutations of one would push out the build of the checkout.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.entry import Mutation, apply, problem_of
from tests.project import ROOT
from tidecast.native.jit import cache_root

LEFT_OUT = (".git", ".venv", "node_modules", ".cache-kernels", ".pytest_cache", ".mypy_cache")
LIMIT_S = 600.0
"""Longest run of the tests of one mutation, compiling included."""
KILLED, SURVIVED, BROKEN = "killed", "survived", "broken"
PASSED, FAILED = 0, 1
"""Exit codes of pytest. Any other one says nothing about the mutation."""
_FAILED = re.compile(r"^FAILED (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one mutation. ``detail``: the test that failed, or the end of the output."""

    mutation: Mutation
    verdict: str
    detail: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Workshop:
    """A copy of the project, where its mutations are made."""

    folder: Path

    @property
    def project(self) -> Path:
        """The copy."""
        return self.folder / "project"

    def environment(self, cache: Path) -> dict[str, str]:
        """Python finds the packages of the copy before those that are installed."""
        path = os.pathsep.join(str(self.project / name) for name in ("engine", "backend"))
        return os.environ | {"PYTHONPATH": path, "TIDECAST_CACHE_DIR": str(cache)}

    def pytest(
        self, tests: Sequence[str], cache: Path, *, bytecode: bool = False
    ) -> tuple[int, str]:
        """(exit code, output) of the tests, until the first that fails. -1: not within the limit"""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--no-header", "-p"]
        environment = self.environment(cache)
        if not bytecode:
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        with subprocess.Popen(
            [*command, "no:cacheprovider", *tests],
            cwd=self.project,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as run:
            try:
                output, _ = run.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, 9)
                return -1, run.communicate()[0]
        return run.returncode, output


@contextlib.contextmanager
def workshop(root: Path = ROOT) -> Iterator[Workshop]:
    """A copy of the project in a temporary directory. Raises RuntimeError if it is not imported."""
    with tempfile.TemporaryDirectory(prefix="tidecast-mutation-") as folder:
        place = Workshop(Path(folder))
        ignored = shutil.ignore_patterns(*LEFT_OUT)
        shutil.copytree(root, place.project, symlinks=True, ignore=ignored)
        ask = [sys.executable, "-c", "import tidecast; print(tidecast.__file__)"]
        found = subprocess.run(
            ask,
            cwd=place.folder,
            env=place.environment(cache_root()),
            text=True,
            capture_output=True,
            check=True,
        ).stdout.strip()
        if not Path(found).is_relative_to(place.project):
            raise RuntimeError(f"the copy is not imported, but {found}")
        yield place


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system; or the file was replaced meanwhile
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(source, target)


@contextlib.contextmanager
def own_cache(place: Workshop) -> Iterator[Path]:
    """A cache of kernels with all that is compiled, removed in the end. Entries are only replaced,
    never written to, so links are enough."""
    cache = place.folder / "kernels"
    if cache_root().is_dir():
        shutil.copytree(cache_root(), cache, copy_function=_link, dirs_exist_ok=True)
    try:
        yield cache
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def verdict_of(code: int, output: str) -> tuple[str, str]:
    """Killed only by a test that failed: one that could not begin says nothing."""
    failed = _FAILED.findall(output)
    if code == FAILED and failed:
        return KILLED, failed[0].rstrip(":")
    if code == PASSED:
        return SURVIVED, ""
    return BROKEN, f"pytest ended with {code}:\n" + "\n".join(output.splitlines()[-15:])


def run_one(place: Workshop, mutation: Mutation) -> Outcome:
    """Apply one mutation, run its tests, take it back."""
    began = time.monotonic()
    problem = problem_of(mutation, place.project)
    if problem:
        return Outcome(mutation, BROKEN, problem, 0.0)
    before = apply(mutation, place.project)
    try:
        with own_cache(place) as cache:
            verdict, detail = verdict_of(*place.pytest(mutation.tests, cache))
    finally:
        (place.project / mutation.file).write_text(before)
    return Outcome(mutation, verdict, detail, time.monotonic() - began)


def baseline(place: Workshop, mutations: Sequence[Mutation]) -> str:
    """Run the tests without a mutation, also to compile what they need; what went wrong, or ""."""
    tests = list(dict.fromkeys(test for one in mutations for test in one.tests))
    code, output = place.pytest(tests, cache_root(), bytecode=True)
    return "" if code == PASSED else "\n".join(output.splitlines()[-30:])
