"""Tidecast topics in PySpark: a source, a sink and the jobs of the data pipeline.

`session()` gives a SparkSession that knows ``format("tidecast")``; `register(spark)` teaches a
session of your own. PySpark is an extra: ``pip install tidecast[spark]``. Nothing outside this
package imports it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidecast_spark.source import TidecastDataSource
    from tidecast_spark.spark_session import register, session

__all__ = ["TidecastDataSource", "register", "session"]

_WHERE = {"session": "spark_session", "register": "spark_session", "TidecastDataSource": "source"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
