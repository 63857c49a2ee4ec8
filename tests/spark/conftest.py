"""A real SparkSession for the tests that need one: it starts once, on first use."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import pytest

if importlib.util.find_spec("pyspark") is None:  # an extra: `make install-spark`
    collect_ignore_glob = ["test_*.py"]

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.default.parallelism": "2",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test with a session pays for its start: a minute on a machine that is busy."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(290))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from tidecast_spark import session

    # What runs for a second only is not worth optimising: half the CPU time.
    os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1"
    one = session("tests", master="local[2]", config=SETTINGS)
    yield one
    one.stop()
