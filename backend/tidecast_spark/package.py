"""The packages of a job in one zip file, for ``spark-submit --py-files``.

The workers of the cluster need NumPy, Numba, msgspec and PyArrow of their own: they are no pure
Python.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

KINDS = ("*.py", "*.properties")
PACKAGES = ("tidecast", "tidecast_spark", "pyspark_tidecast")


def write_package(out: Path) -> int:
    """Write the zip file; how many files it holds. The same sources give the same bytes."""
    n = 0
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in PACKAGES:
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            root = Path(spec.origin).parent
            for path in sorted(p for kind in KINDS for p in root.rglob(kind)):
                inside = Path(name) / path.relative_to(root)
                archive.writestr(zipfile.ZipInfo(str(inside)), path.read_bytes())
                n += 1
    return n
