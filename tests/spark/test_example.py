"""examples/spark_totals.py on a real session and a real engine."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from typing import Any

import pytest
from tests.project import ROOT
from tests.support.lab import Lab, open_lab, topology


@pytest.fixture
def lab() -> Iterator[Lab]:
    with open_lab() as made:
        yield made


def test_totals_of_a_batch_and_of_a_stream_are_those_of_what_was_published(
    spark: Any, lab: Lab
) -> None:
    platform = lab.platform(topology({"name": "ipc", "kind": "ipc"}))
    program = runpy.run_path(str(ROOT / "examples/spark_totals.py"))
    found = program["run"](spark, str(platform.directory), 1000)
    assert program["holds"](found), found
    assert sum(found["true"].values()) == sum(range(1000))
    assert not program["holds"](found | {"stream": found["stream_first_half"]})
