"""How kernels are compiled: one decorator, one cache directory keyed by the engine's sources.

Numba's on-disk cache notices an edit of the file that holds a function, not of the files that
function calls into, and module globals are frozen as constants. The cache directory is therefore
named by a digest of every engine source: any edit starts a fresh cache.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

BOUNDSCHECK = os.environ.get("TIDECAST_BOUNDSCHECK", "0") not in ("", "0")
"""True in checked builds: every load, store and copy verifies its range and raises IndexError."""

_CACHES_KEPT_MAX = 3
_KERNEL_FOLDERS = ("native", "layout", "buffers", "protocol", "log", "transport", "agents")
"""Besides these only modules of the client named ``*kernels.py`` may hold kernels."""


def source_digest() -> str:
    """Digest of all sources that hold kernels and of the build flags, 16 hex digits."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    sources = [p for folder in _KERNEL_FOLDERS for p in (root / folder).rglob("*.py")]
    sources += list((root / "client").glob("*kernels.py"))
    for path in sorted(sources):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    digest.update(f"{BOUNDSCHECK}|{platform.machine()}|{platform.python_version()}".encode())
    return digest.hexdigest()[:16]


def cache_root() -> Path:
    """Where compiled kernels are kept: ``TIDECAST_CACHE_DIR`` or the user's cache directory."""
    given = os.environ.get("TIDECAST_CACHE_DIR")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tidecast" / "kernels"


def _use_cache() -> Path:
    root = cache_root()
    directory = root / source_digest()
    directory.mkdir(parents=True, exist_ok=True)
    os.utime(directory)
    siblings = sorted(
        (p for p in root.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime, reverse=True
    )
    for old in siblings[_CACHES_KEPT_MAX:]:
        shutil.rmtree(old, ignore_errors=True)
    return directory


if "NUMBA_CACHE_DIR" not in os.environ:
    os.environ["NUMBA_CACHE_DIR"] = str(_use_cache())
if BOUNDSCHECK:
    os.environ["NUMBA_BOUNDSCHECK"] = "1"

import numba  # noqa: E402  (its cache directory is read at import)

if "NUMBA_CACHE_DIR" in os.environ:
    numba.config.CACHE_DIR = os.environ["NUMBA_CACHE_DIR"]

CACHE_DIR = Path(numba.config.CACHE_DIR)
"""Where this build's compiled kernels lie."""

_OPTIONS: dict[str, Any] = {
    "cache": True,
    "error_model": "numpy",
    "boundscheck": BOUNDSCHECK,
}


def kernel(fn: Callable[..., Any]) -> Any:
    """Compile ``fn`` as a kernel that runs without the interpreter lock. Cached on disk."""
    return numba.njit(nogil=True, **_OPTIONS)(fn)


def held_kernel(fn: Callable[..., Any]) -> Any:
    """Compile ``fn`` as a kernel that keeps the interpreter lock: atomic for Python threads."""
    return numba.njit(nogil=False, **_OPTIONS)(fn)


def inlined(fn: Callable[..., Any]) -> Any:
    """Compile ``fn`` for use inside kernels only; never entered from Python, so never cached."""
    return numba.extending.register_jitable(
        nogil=True,
        error_model="numpy",
        boundscheck=BOUNDSCHECK,
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
    )(fn)


def closure_kernel(fn: Callable[..., Any]) -> Any:
    """Compile a closure over a user's function; releases the interpreter lock, never on disk.

    The disk cache would notice an edit of our file, not of the user's, and run his old code.
    """
    options = {**_OPTIONS, "cache": False}
    return numba.njit(nogil=True, **options)(fn)
