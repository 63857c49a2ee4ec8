"""Which Python, Numba and NumPy this version of Tidecast was tested with; all others are refused.

Kernels rely on internals that change without notice: Numba's compiler pipeline
(`native/compiling.py`), the layout of CPython's objects (`native/objects.py`), and the interpreter
lock, which a kernel holds while it touches memory that threads share. A wrong version would corrupt
memory instead of raising. The same bounds stand in `pyproject.toml`.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Mapping

Version = tuple[int, ...]
PYTHON: tuple[Version, Version] = ((3, 11), (3, 14))
"""From, and below."""
LIBRARIES: dict[str, tuple[Version, Version]] = {
    "numba": ((0, 61), (0, 69)),
    "numpy": ((2, 0), (3, 0)),
}


def check_python(
    version: Version | None = None,
    implementation: str = sys.implementation.name,
    free_threaded: bool | None = None,
) -> None:
    """Raise ImportError for an interpreter that kernels cannot work with. None: this one's."""
    version = tuple(sys.version_info[:2]) if version is None else version
    if free_threaded is None:
        free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    if implementation != "cpython":
        raise ImportError(f"tidecast: python: {implementation}: allowed is CPython")
    if free_threaded:
        raise ImportError(
            "tidecast: python: a free-threaded build: kernels hold the interpreter lock while they "
            "write what threads share: use the usual build (python3.13, not python3.13t)"
        )
    _check("python", version, PYTHON)


def check_libraries(versions: Mapping[str, str] | None = None) -> None:
    """Raise ImportError for a Numba or NumPy that was not tested. None: the installed ones."""
    for name, allowed in LIBRARIES.items():
        if versions is None:
            from importlib.metadata import version  # takes 0.2 s when it is first loaded

            text = version(name)
        else:
            text = versions[name]
        _check(name, tuple(int(part) for part in text.split(".")[:2]), allowed)


def _check(name: str, version: Version, allowed: tuple[Version, Version]) -> None:
    least, below = (".".join(map(str, each)) for each in allowed)
    if not allowed[0] <= version < allowed[1]:
        raise ImportError(
            f"tidecast: {name}: {'.'.join(map(str, version))}: allowed {least} up to, not "
            f"including, {below}: install a tested version, or a newer Tidecast"
        )
