"""Spark's way in: a top-level module ``pyspark_*`` with a `DefaultSource` registers itself.

So ``spark.read.format("tidecast")`` works in any session where Tidecast is installed.
"""

from __future__ import annotations

from tidecast_spark.source import TidecastDataSource as DefaultSource

__all__ = ["DefaultSource"]
