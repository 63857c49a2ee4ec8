"""Interpreters and libraries whose internals the kernels do not know are refused at import."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest
from tests.project import ROOT

from tidecast import supported


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13)])
def test_each_python_that_is_claimed_is_allowed(version: tuple[int, int]) -> None:
    supported.check_python(version, "cpython", free_threaded=False)
    classifier = f"Programming Language :: Python :: {version[0]}.{version[1]}"
    assert classifier in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("version", "implementation", "free_threaded", "message"),
    [
        ((3, 10), "cpython", False, "python: 3.10: allowed 3.11 up to, not including, 3.14"),
        ((3, 14), "cpython", False, "python: 3.14: allowed 3.11 up to"),
        ((3, 13), "cpython", True, "a free-threaded build"),
        ((3, 11), "pypy", False, "python: pypy: allowed is CPython"),
    ],
)
def test_other_interpreters_are_refused(
    version: tuple[int, int], implementation: str, free_threaded: bool, message: str
) -> None:
    with pytest.raises(ImportError, match=re.escape(message)):
        supported.check_python(version, implementation, free_threaded)


@pytest.mark.parametrize(
    ("name", "text"), [("numba", "0.60.0"), ("numba", "0.69.0rc1"), ("numpy", "3.0.0")]
)
def test_libraries_that_were_not_tested_are_refused(name: str, text: str) -> None:
    versions = {"numba": "0.61.2", "numpy": "2.0.1"}
    supported.check_libraries(versions)
    with pytest.raises(ImportError, match=f"{name}: .*: allowed .* install a tested version"):
        supported.check_libraries(versions | {name: text})


def test_what_runs_here_is_allowed() -> None:
    supported.check_python()
    supported.check_libraries()


def test_importing_tidecast_checks_the_interpreter() -> None:
    code = (
        "import sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1\n"
        "try:\n    import tidecast\nexcept ImportError as problem:\n    print(problem)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "free-threaded" in run.stdout


@pytest.mark.parametrize("module", ["tidecast.agents", "tidecast.client"])
def test_engines_and_clients_check_the_libraries(module: str) -> None:
    code = (
        "from tidecast import supported\n"
        "supported.LIBRARIES['numba'] = ((9, 0), (9, 1))\n"
        f"try:\n    import {module}\nexcept ImportError as problem:\n    print(problem)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "numba" in run.stdout


def test_the_bounds_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [project["requires-python"], *project["dependencies"]]
    bounds = {"python": supported.PYTHON, **supported.LIBRARIES}
    for name, (least, below) in bounds.items():
        wanted = f">={'.'.join(map(str, least))},<{'.'.join(map(str, below))}"
        prefix = "" if name == "python" else name
        assert any(text.replace(" ", "") == prefix + wanted for text in texts), f"{name}{wanted}"
