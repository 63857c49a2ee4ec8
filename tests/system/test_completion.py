"""Completion as shells run it: bash by its own function, zsh and fish by what theirs ask for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.lab import Platform, open_lab
from tests.support.nursery import Nursery

BASH = """
set -eu
source <(tidecast completion bash)
words=$(complete -p tidecast)
[[ $words =~ -F\\ ([^ ]+) ]]
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
"${BASH_REMATCH[1]}" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def platform(nursery: Nursery) -> Iterator[Platform]:
    with open_lab(nursery) as lab:
        made = lab.platform()
        made.run("topic", "create", "orders", "--mode", "durable", "--description", "of shops")
        made.run("topic", "create", "md.eu")
        made.run("subscription", "create", "orders", "billing")
        made.run("subscription", "create", "orders", "audit")
        yield made


def _environment(directory: Path) -> dict[str, str]:
    tools = Path(sys.executable).parent
    return os.environ | {
        "TIDECAST_DATA_DIR": str(directory),
        "PATH": f"{tools}:{os.environ['PATH']}",
    }


def in_bash(directory: Path, *words: str) -> set[str]:
    """The completions that bash offers behind these words."""
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "-c", BASH, "bash", *words],
        env=_environment(directory),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("su",), {"sub", "subscription"}),
        (("topic", "sh"), {"show"}),
        (("topic", "show", ""), {"orders", "md.eu"}),
        (("sub", "o"), {"orders"}),
        (("pub", "m"), {"md.eu"}),
        (("subscription", "show", ""), {"orders"}),
        (("subscription", "show", "orders", ""), {"billing", "audit"}),
        (("sub", "orders", "--subscription", "b"), {"billing"}),
        (("pub", "orders", "--ack", ""), {"none", "engine", "durable"}),
        (("faults", "set", "--transport", ""), {"multicast", "ipc"}),
        (("completion", ""), {"bash", "zsh", "fish"}),
    ],
)
def test_bash_offers_commands_and_names(
    platform: Platform, words: tuple[str, ...], offered: set[str]
) -> None:
    assert in_bash(platform.directory, "tidecast", *words) == offered


def test_bash_offers_options(platform: Platform) -> None:
    assert in_bash(platform.directory, "tidecast", "sub", "orders", "--until") == {
        "--until",
        "--until-end",
    }


def test_names_come_from_the_topology_file_without_an_engine(tmp_path: Path) -> None:
    (tmp_path / "topology.yaml").write_text("topics: [{name: declared}]\n")
    assert in_bash(tmp_path, "tidecast", "sub", "") == {"declared"}
    (tmp_path / "topology.yaml").write_text("topics: [")
    assert in_bash(tmp_path, "tidecast", "sub", "") == set()
    assert in_bash(tmp_path / "none", "tidecast", "subscription", "show", "x", "") == set()


@pytest.mark.parametrize(
    ("shell", "position", "said"),
    [
        ("zsh", "2", ["plain", "orders", "of shops"]),
        ("fish", "o", ["plain,orders\tof shops"]),
    ],
)
def test_other_shells_get_the_same_names(
    platform: Platform, shell: str, position: str, said: list[str]
) -> None:
    environment = _environment(platform.directory)
    script = subprocess.run(
        ["tidecast", "completion", shell],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert f"_TIDECAST_COMPLETE={shell}_complete" in script
    asked = environment | {
        "_TIDECAST_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "tidecast sub o",
        "COMP_CWORD": position,
    }
    done = subprocess.run(
        ["tidecast"], env=asked, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == said
