"""A real SparkSession for the tests that need one: it starts once, on first use."""

from __future__ import annotations

import importlib.util
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


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from tidecast_spark import session

    one = session("tests", master="local[2]", config=SETTINGS)
    yield one
    one.stop()
