"""The list of mutations fits the code of today. The long tests run the mutations, in shards."""

from __future__ import annotations

import dataclasses
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.entries import MUTATIONS
from tests.mutation.entry import Mutation, apply, problem_of
from tests.mutation.run import BROKEN, KILLED, SURVIVED, verdict_of
from tests.project import ROOT

AT_LEAST = 60
SHARDS = 12
CRITICAL = (
    "engine/tidecast/native/system/files.py",
    "engine/tidecast/log/repair/recovery.py",
    "engine/tidecast/log/queue_log.py",
    "engine/tidecast/log/takeover.py",
    "engine/tidecast/agents/archiver/",
    "engine/tidecast/protocol/dedup.py",
    "engine/tidecast/queues/leases/",
    "engine/tidecast/queues/cache/",
    "engine/tidecast/agents/puller/",
    "engine/tidecast/buffers/writer.py",
    "engine/tidecast/buffers/reader.py",
    "engine/tidecast/protocol/loss.py",
    "engine/tidecast/protocol/flow_control.py",
    "engine/tidecast/protocol/check.py",
    "engine/tidecast/native/crypto/",
    "engine/tidecast/protocol/sealing/",
    "engine/tidecast/agents/live/",
    "engine/tidecast/access.py",
    "engine/tidecast/gateway/",
    "backend/tidecast_control/kit/rights.py",
    "backend/tidecast_control/api/resources.py",
    "backend/tidecast_control/apply/",
    "backend/tidecast_control/auth/",
)
ONE = MUTATIONS[0]


@functools.cache
def names_of(path: Path) -> frozenset[str]:
    """Names of the tests of a file."""
    return frozenset(re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE))


def missing_tests(mutation: Mutation) -> list[str]:
    """Ids of its tests that do not exist."""
    found = []
    for each in mutation.tests:
        file, _, name = each.partition("::")
        path = ROOT / file
        if not path.is_file() or (name and name.partition("[")[0] not in names_of(path)):
            found.append(each)
    return found


def test_every_mutation_applies_and_names_tests_that_exist() -> None:
    problems = {one.name: problem_of(one, ROOT) for one in MUTATIONS}
    assert not {name: why for name, why in problems.items() if why}
    missing = {one.name: missing_tests(one) for one in MUTATIONS}
    assert not {name: tests for name, tests in missing.items() if tests}
    assert all(one.tests and one.breaks.endswith(".") for one in MUTATIONS)


def test_the_list_covers_the_critical_modules() -> None:
    names = [one.name for one in MUTATIONS]
    assert len(names) == len(set(names))
    assert len([one for one in MUTATIONS if not one.equivalent]) >= AT_LEAST
    files = {one.file for one in MUTATIONS}
    assert [part for part in CRITICAL if not any(f.startswith(part) for f in files)] == []


def test_an_entry_that_no_longer_applies_is_named(tmp_path: Path) -> None:
    fits = dataclasses.replace(ONE, file="a.py", old="x = 1", new="x = 2")
    (tmp_path / "a.py").write_text("x = 1\n")
    assert problem_of(fits, tmp_path) == ""
    assert problem_of(dataclasses.replace(fits, new="x = 1"), tmp_path) == "it changes nothing"
    assert "does not exist" in problem_of(dataclasses.replace(fits, file="b.py"), tmp_path)
    assert apply(fits, tmp_path) == "x = 1\n"
    assert (tmp_path / "a.py").read_text() == "x = 2\n"
    with pytest.raises(ValueError, match=r"occurs 0 times in a\.py"):
        apply(fits, tmp_path)
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    assert "occurs 2 times" in problem_of(fits, tmp_path)


@pytest.mark.parametrize(
    ("code", "output", "verdict"),
    [
        (1, "1 failed\nFAILED tests/a.py::test_b - assert 1", KILLED),
        (0, "1 passed", SURVIVED),
        (1, "ERROR tests/a.py::test_b - OSError", BROKEN),  # it could not begin
        (2, "Interrupted: 1 error during collection", BROKEN),
        (4, "ERROR: not found: tests/a.py::test_b", BROKEN),
        (5, "no tests ran", BROKEN),
        (-1, "", BROKEN),
    ],
)
def test_only_a_test_that_fails_kills(code: int, output: str, verdict: str) -> None:
    assert verdict_of(code, output)[0] == verdict


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shard", range(1, SHARDS + 1))
def test_every_mutation_is_killed(shard: int) -> None:
    command = [sys.executable, "-m", "tests.mutation", "--shard", f"{shard}/{SHARDS}"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
