"""Long tests run: each is in one shard, in the nightly workflow, and chosen by a change."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import changed, parts, scheduling, shards
from tests.mutation.entries import MUTATIONS
from tests.project import ROOT, files
from tests.support import warm

WORKFLOWS = {path.name: path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml")}


def test_each_test_is_in_one_shard() -> None:
    tests = [f"tests/unit/test_a.py::test_x[{i}]" for i in range(10)]
    tests += [f"tests/e2e/test_{name}.py::test_{i}" for name in "abc" for i in range(3)]
    parts = [shards.chosen(tests, number, 4) for number in range(1, 5)]
    assert [sum(each) for each in zip(*parts, strict=True)] == [1] * len(tests)
    for part in parts:
        kept = [test for test, keep in zip(tests, part, strict=True) if keep]
        platforms = {shards.unit_of(test) for test in kept if "e2e" in test}
        assert len([t for t in kept if "e2e" in t]) == 3 * len(platforms), "a platform was divided"
    assert all(shards.chosen(tests, 1, 1))


@pytest.mark.parametrize("text", ["", "0/4", "5/4", "1", "a/b", "1/0", "-1/2"])
def test_wrong_shards_are_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="allowed is NUMBER/COUNT"):
        shards.parsed(text)


class Named:
    """A test that pytest collected: its name and its marks."""

    def __init__(self, nodeid: str, *marks: str) -> None:
        self.nodeid, self.path, self._marks = nodeid, nodeid.partition("::")[0], marks

    def get_closest_marker(self, name: str) -> bool:
        return name in self._marks


def test_the_two_builds_of_make_test_run_each_test_once() -> None:
    rings, races = "tests/unit/test_packet_ring.py", "tests/unit/test_ring_races.py"
    both: list[Any] = [Named(f"{races}::test_x")]
    checked: list[Any] = [Named(f"{rings}::test_{i}") for i in range(3)]
    release: list[Any] = [Named(f"{rings}::test_same[{i}]", "same_kernels") for i in range(2)]
    release += [
        Named("tests/unit/test_cli.py::test_x"),
        Named("tests/control/test_link.py::test_x"),
    ]
    tests = [*release, *both, *checked]
    assert parts.kept(tests, "kernels", True) == [*both, *checked]
    assert parts.kept(tests, "rest", False) == [*release, *both]
    assert parts.kept(tests, "all", False) == tests
    assert parts.kept(tests, "kernels", False) == [*release[:2], *both, *checked]
    assert parts.kept(release[:2], "all", True) == release[:2], "asked for by name"
    assert set(parts.NO_KERNELS) | parts.BOTH <= set(files())
    assert all(map(parts.has_kernels, parts.BOTH))
    recipes = (ROOT / "Makefile").read_text()
    assert "pytest $(FAST) --part rest" in recipes.partition("\ntest:")[2].partition("\n\n")[0]
    run = r"^\t(.*)\$\(BIN\)/python -m pytest \$\(FAST\) --part kernels"
    runs = re.findall(run, recipes, re.MULTILINE)
    assert sorted(runs) == ["", "exec env TIDECAST_BOUNDSCHECK=1 "], "nightly, and the checked one"


def test_what_is_costly_to_start_starts_in_one_worker() -> None:
    assert scheduling.group_of("tests/e2e/test_forms.py::test_x[1::2]") == "tests/e2e/"
    assert scheduling.group_of("tests/unit/test_a.py::test_x[1::2]") == "tests/unit/test_a.py"
    assert {scheduling.group_of(f"{path}::test_x") for path in scheduling.WITH_BROKER} == {
        scheduling.WITH_BROKER[0]
    }
    unit = {path: text for path, text in files().items() if path.startswith("tests/unit/")}
    with_broker = {path for path, text in unit.items() if "real_kafka: " in text}
    assert with_broker == set(scheduling.WITH_BROKER)
    for suite in scheduling.LONG:
        assert any(path.startswith(suite) for path in files()), suite


def test_long_groups_begin_first() -> None:
    tests = [f"tests/unit/test_small.py::test_{i}" for i in range(2)]
    tests += [f"tests/unit/test_large.py::test_{i}" for i in range(9)]
    tests += ["tests/system/test_up.py::test_x", "tests/spark/test_a.py::test_x"]
    tests += ["tests/e2e/test_a.py::test_x", "tests/e2e/test_b.py::test_x", "tests/test_tidy.py::x"]
    groups: dict[str, dict[str, bool]] = {}
    for test in tests:
        groups.setdefault(scheduling.group_of(test), {})[test] = False
    order = []
    while groups:
        order.append(scheduling.next_of(groups))
        groups.pop(order[-1])
    assert order == [
        "tests/e2e/",
        "tests/spark/",
        "tests/system/test_up.py",
        "tests/test_tidy.py",
        "tests/unit/test_large.py",
        "tests/unit/test_small.py",
    ]


def workers_run(directory: Path, tests: str, workers: int) -> str:
    """The output of workers as those of `make test` that run ``tests``, a folder."""
    [fast] = re.findall(r"^FAST := .* --dist (\w+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    (directory / "conftest.py").write_text("from tests.conftest import pytest_xdist_make_scheduler")
    options = ["-n", f"{workers}", "--dist", fast, "-v", "-p", "no:cacheprovider"]
    options += ["--rootdir", ".", "-o", f"pythonpath={ROOT}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, tests],
        cwd=directory,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return done.stdout + done.stderr


def test_the_workers_of_make_test_take_groups(tmp_path: Path) -> None:
    (tmp_path / "tests/e2e").mkdir(parents=True)
    for name in "ab":
        text = "\n".join(f"def test_{i}(): pass" for i in range(9))
        (tmp_path / f"tests/e2e/test_{name}.py").write_text(text)
    output = workers_run(tmp_path, "tests", 2)
    assert "18 passed" in output, output
    assert len(set(re.findall(r"\[(gw\d)\]", output))) == 1


@pytest.mark.parametrize("crashes", [0, 1, 2])
def test_a_worker_that_crashes_fails_one_test_and_ends_no_run(tmp_path: Path, crashes: int) -> None:
    """Before, its test ran again and again, or the last test of its group waited for ever."""
    (tmp_path / "tests").mkdir()
    for name in "abc":
        text = "\n".join(f"def test_{i}(): pass" for i in range(2))
        (tmp_path / f"tests/test_{name}.py").write_text(text)
    (tmp_path / "tests/test_crash.py").write_text(
        "import os, signal\nimport pytest\n"
        "@pytest.mark.parametrize('n', range(3))\n"
        f"def test_it(n):\n    if n == {crashes}: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    output = workers_run(tmp_path, "tests", 2)
    assert "1 failed, 8 passed" in output, output


def test_kernels_that_engines_compile_late_are_compiled_before_the_tests() -> None:
    """Each `warm_up` of the engine, but those that call others, and one of Spark."""
    modules = {
        path.removeprefix("engine/").removesuffix(".py").replace("/", ".")
        for path, text in files().items()
        if path.startswith("engine/tidecast/") and "\ndef warm_up(" in text
    }
    modules -= {
        "tidecast.agents.warmup",
        "tidecast.kafka.server",
        "tidecast.cli.pipelines.pipeline",
    }
    assert {module.__name__ for module in warm.modules()} == modules


def test_files_of_tests_are_rewritten_once() -> None:
    """Else each worker rewrites them all: so it is when their bytecode has another name."""
    assert sys.dont_write_bytecode or warm.is_rewritten(Path(__file__))
    files_of = {
        part: {p for p in (ROOT / "tests").rglob("test_*.py") if parts.has_tests(part, p, ROOT)}
        for part in parts.PARTS
    }
    assert files_of["kernels"] | files_of["rest"] == files_of["all"]
    both = {p.relative_to(ROOT).as_posix() for p in files_of["kernels"] & files_of["rest"]}
    assert both >= parts.BOTH


@pytest.mark.long
def test_a_run_names_the_kernels_that_its_tests_compile(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from tests.support import compiled\n"
        "def pytest_configure(config): config.pluginmanager.register(compiled.Plugin())\n"
    )
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "from tidecast.native.jit import kernel, closure_kernel\n"
        "@kernel\n"
        "def doubled(n): return 2 * n\n"
        "of_user = closure_kernel(lambda n: n + 1)\n"
        "@pytest.mark.parametrize('turn', range(2))\n"
        "def test_it(turn): assert of_user(doubled(3)) == 7\n"
    )
    options = ["-n", "1", "-p", "xdist.plugin", "-p", "no:cacheprovider", "--rootdir", "."]
    command = [sys.executable, "-m", "pytest", *options, "-o", f"pythonpath={ROOT}"]
    environment = os.environ | {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "TIDECAST_CACHE_DIR": str(tmp_path / "cache"),
    }
    told = re.compile(r"(\d+) kernels compiled by tests|s test_it\.(\w+)$", re.MULTILINE)
    said = []
    for _ in range(2):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert "2 passed" in done.stdout, done.stdout + done.stderr
        said.append(told.findall(done.stdout))
    assert said == [[("1", ""), ("", "doubled")], []]


def test_each_python_that_is_claimed_runs_the_unit_tests() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    claimed = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    job = yaml.safe_load(WORKFLOWS["nightly.yml"])["jobs"]["pythons"]
    assert job["strategy"]["matrix"]["python"] == claimed
    assert len(claimed) > 1
    assert any("tests/unit" in step.get("run", "") for step in job["steps"])


def test_the_workflows_run_what_there_is() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name, text in WORKFLOWS.items():
        jobs: dict[str, Any] = yaml.safe_load(text)["jobs"]
        runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
        for run in runs:
            for made in re.findall(r"^make ([a-z -]+)", run):
                assert set(made.split()) <= targets, f"{name}: make {made}"
    [long] = [run for run in WORKFLOWS["nightly.yml"].splitlines() if "make test-long" in run]
    matrix = yaml.safe_load(WORKFLOWS["nightly.yml"])["jobs"]["long"]["strategy"]["matrix"]
    count = len(matrix["shard"])
    assert matrix["shard"] == list(range(1, count + 1))
    assert f"--shard ${{{{ matrix.shard }}}}/{count}" in long
    assert "schedule" in WORKFLOWS["nightly.yml"]
    assert "make test-changed" in WORKFLOWS["submission.yml"]


def test_users_need_no_tools_of_developers() -> None:
    text = (ROOT / "Makefile").read_text()
    needs = dict(re.findall(r"^([a-z-]+):([^#\n]*)##", text, re.MULTILINE))
    recipes = dict(re.findall(r"^([a-z-]+):.*##.*\n((?:\t.*\n)+)", text, re.MULTILINE))
    tools = re.compile(
        r"-m pytest|\$\(MAKE\)[a-z -]* test-fast|\$\(LONG\)|\$\(call check,|/ruff|/mypy"
        r"|lint-imports|-m tests\."
    )
    develops = {target for target, recipe in recipes.items() if tools.search(recipe)}
    assert {"test-fast", "test-long", "lint", "swarm", "mutation"} <= develops
    for target, needed in needs.items():
        assert ("install-dev" in needed.split()) == (target in develops), f"make {target}"
    installs = re.findall(r"--editable '\.\[([a-z,]+)\]'", text)
    assert installs == ["arrow,control"], "make install: what users need; the rest by `add`"


def with_long_tests() -> set[str]:
    """Files that have some."""
    mark = re.compile(r"^(?:@|pytestmark = \[?|    |.*marks=.*)pytest\.mark\.long\b", re.MULTILINE)
    tests = {path: text for path, text in files().items() if Path(path).name.startswith("test_")}
    return {path for path, text in tests.items() if mark.search(text)}


def test_every_file_with_long_tests_is_chosen_by_some_change() -> None:
    assert set(changed.TOUCHED_BY) == with_long_tests()
    parts = {part for touched_by in changed.TOUCHED_BY.values() for part in touched_by}
    assert [part for part in parts if not any(path.startswith(part) for path in files())] == []


def test_every_source_has_long_tests_or_a_reason() -> None:
    parts = tuple({part for touched_by in changed.TOUCHED_BY.values() for part in touched_by})
    sources = [
        path
        for path in files()
        if path.startswith(("engine/", "backend/", "frontend/")) and path.endswith((".py", ".tsx"))
    ]
    without = {path for path in sources if not path.startswith(parts)}
    assert without == set(changed.NO_LONG_TESTS)


def test_a_change_chooses_its_tests_and_mutations() -> None:
    assert changed.long_tests(["engine/tidecast/log/repair/recovery.py"]) != []
    assert "tests/simulation/test_power.py" in changed.long_tests(["engine/tidecast/disk.py"])
    assert changed.long_tests(["tests/system/test_up.py"]) == ["tests/system/test_up.py"]
    assert changed.long_tests(["CHANGELOG.md"]) == changed.mutations(["CHANGELOG.md"]) == []
    one = MUTATIONS[0]
    assert one.name in changed.mutations([one.file])
    assert one.name in changed.mutations([one.tests[0].partition("::")[0]])
