"""Builds of the product: that of the checkout, and that of the last release, beside it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import Lab, Platform
from tests.support.process import ROOT, Child

RELEASE = "v0.1.0"
COMMIT = "23c7389cca5f0984da1216d5837721a0cfd3a2ea"
"""That of the release's tag: a clone without tags has it, too."""
PARTS = ("engine", "backend", "tests")
_WARM_UP = "from tidecast.agents.warmup import warm_up; warm_up()"


COMPILE_TIMEOUT_S = 400.0
"""An engine with a cache of its own is ready after that."""


@dataclasses.dataclass(frozen=True)
class Build:
    """Where a build's code is; None: that of the checkout."""

    name: str
    directory: Path | None = None

    def options(self, **environment: str) -> dict[str, Any]:
        """For a process of this build."""
        if self.directory is None:
            return {"env": {**os.environ, **environment}}
        paths = [self.directory / "engine", self.directory, self.directory / "backend"]
        mine = {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "TIDECAST_CACHE_DIR": str(self.directory / "kernels"),
        }
        return {"env": {**os.environ, **mine, **environment}, "cwd": self.directory}

    def engine(self, lab: Lab, settings: Any, *arguments: str) -> Platform:
        """An engine of this build; ready when this returns."""
        made = lab.platform(settings, start=False)
        self.start(lab, made, *arguments)
        return made

    def begin(self, lab: Lab, platform: Platform, *arguments: str, **environment: str) -> Child:
        """An engine of this build on a data directory that there is; it may refuse to start."""
        options = self.options(**environment)
        platform.engine = lab.spawn("engine", *arguments, platform=platform, **options)
        return platform.engine

    def start(self, lab: Lab, platform: Platform, *arguments: str, **environment: str) -> None:
        """See `begin`; ready when this returns."""
        made = self.begin(lab, platform, *arguments, **environment)
        assert "ready" in made.line("ready, after its kernels", COMPILE_TIMEOUT_S)

    def role(self, lab: Lab, name: str, url: str, *arguments: str, **environment: str) -> Child:
        """A client process of this build, see `tests.support.roles`."""
        return lab.role(name, url, *arguments, **self.options(**environment))

    def python(self, code: str) -> str:
        """The output of a program of this build; fails when it does."""
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=False,
            **({"cwd": ROOT} | self.options()),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()


NEW = Build("new")


def missing() -> str:
    """Why there is no build of the release; empty when there is."""
    asked = ["git", "cat-file", "-e", f"{COMMIT}^{{commit}}"]
    found = subprocess.run(asked, cwd=ROOT, capture_output=True, check=False)
    return f"no commit of {RELEASE}: a shallow clone has none" if found.returncode else ""


@pytest.fixture(scope="session")
def old() -> Iterator[Build]:
    """The build of the release; unpacked and compiled once."""
    if missing():
        pytest.skip(missing())
    directory = Path(tempfile.mkdtemp(prefix="tc-"))
    yield unpacked(directory)
    shutil.rmtree(directory, ignore_errors=True)


def unpacked(directory: Path) -> Build:
    """The build of the release, its kernels compiled: about a minute."""
    asked = ["git", "archive", "--format=tar", COMMIT, *PARTS]
    packed = subprocess.run(asked, cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(directory, filter="data")
    made = Build("old", directory)
    made.python(_WARM_UP)
    return made
