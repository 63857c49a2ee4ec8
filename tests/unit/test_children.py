"""Lines of child processes: a child that says nothing fails its test, with the reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support.process import Process


def child(code: str, tmp_path: Path) -> Process:
    return Process([sys.executable, "-u", "-c", code], tmp_path / "log")


def test_lines_are_taken_one_by_one_also_those_that_came_together(tmp_path: Path) -> None:
    made = child("import os; os.write(1, b'a\\nb b\\nc'); os.write(1, b'd\\n')", tmp_path)
    assert [made.line() for _ in range(3)] == ["a", "b b", "cd"]
    with pytest.raises(AssertionError, match="the fourth: it ended, code 0"):
        made.line("the fourth")
    made.close()


def test_a_child_that_says_nothing_fails_by_name_with_its_log(tmp_path: Path) -> None:
    made = child(
        "import sys; print('why', file=sys.stderr); print('half', end=''); sys.stdin.read()",
        tmp_path,
    )
    while "why" not in made.log.read_text():
        assert made.running
    with pytest.raises(AssertionError, match=r"the answer: nothing for 0\.2 s; its log:\nwhy"):
        made.line("the answer", 0.2)
    made.close()
