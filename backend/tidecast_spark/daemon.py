"""Spark's Python daemon with the kernels loaded first, so that workers are forked warm.

A worker that loads them by itself needs 0.6 s before its first row.
"""

from __future__ import annotations

import sys

from pyspark.daemon import manager

if __name__ == "__main__":
    if sys.argv[1:2] == ["pyspark.worker"]:
        import tidecast_spark.reading

        tidecast_spark.reading.load_kernels()
    manager()
