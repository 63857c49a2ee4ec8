"""How kernels are compiled: decorators, and a disk cache keyed by all sources of a kernel.

Numba's own cache notices an edit of the file that holds a function, but not of files with functions
that it calls, and module globals are frozen as constants. Here a kernel is cached in a directory
named by its module and a digest of the source of that module and of every Tidecast module that it
imports, directly or not: an edit compiles only the modules that depend on it, and two checkouts of
the same sources share compiled kernels.

Kernels allocate nothing and count no references: the caller holds the arrays until a kernel
returns. Numba would count at every use of an array, by a call and, for arrays of Python, a locked
instruction: two thirds of the time of a message (142 ns to append and take a message, 25 without).
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

BOUNDSCHECK = os.environ.get("TIDECAST_BOUNDSCHECK", "0") not in ("", "0")
"""True in checked builds: every load, store and copy verifies its range and raises IndexError."""
if BOUNDSCHECK:
    os.environ["NUMBA_BOUNDSCHECK"] = "1"

import numba  # noqa: E402  (it reads the setting above at import)
from numba.core.caching import (  # noqa: E402
    CompileResultCacheImpl,
    FunctionCache,
    _CacheLocator,
)
from numba.core.runtime import rtsys  # noqa: E402

from tidecast.native.compiling import Compiler  # noqa: E402

_PACKAGE = Path(__file__).resolve().parent.parent
# Not `ast`: parsing took 0.3 s of every start. Text that only looks like an import adds a source.
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(tidecast[\w.]*)[ \t]+import\b|import[ \t]+(tidecast[\w.]*))"
    r"[ \t]*(\([^)]*\)|[^\n]*)",
    re.MULTILINE,
)
_NAME = re.compile(r"\w+")
_BUILDS_KEPT_MAX = 8
_BUILD = f"{BOUNDSCHECK}|{platform.machine()}|{platform.python_version()}|{version('numba')}"


def cache_root() -> Path:
    """Where compiled kernels are kept: ``TIDECAST_CACHE_DIR`` or the user's cache directory."""
    given = os.environ.get("TIDECAST_CACHE_DIR")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tidecast" / "kernels"


def source_digest(source: Path) -> str:
    """Digest of a module, of the Tidecast modules it imports, and of the build: 16 hex digits."""
    digest = hashlib.sha256(_BUILD.encode())
    for path in sorted(_closure(source.resolve())):
        digest.update(_content(path)[1])
    return digest.hexdigest()[:16]


def build_directory(source: Path) -> Path:
    """The directory of the compiled kernels of a module. Removes old builds of that module."""
    source = source.resolve()
    inside = source.is_relative_to(_PACKAGE)
    name = source.relative_to(_PACKAGE) if inside else Path("outside", source.name)
    parent = cache_root() / ".".join(name.with_suffix("").parts)
    directory = parent / source_digest(source)
    directory.mkdir(parents=True, exist_ok=True)
    os.utime(directory)
    builds = sorted(parent.iterdir(), key=_age, reverse=True)
    for old in builds[_BUILDS_KEPT_MAX:]:
        shutil.rmtree(old, ignore_errors=True)
    return directory


def _age(directory: Path) -> float:
    try:
        return directory.stat().st_mtime
    except OSError:  # another process removed it
        return 0.0


def _closure(source: Path) -> set[Path]:
    found: set[Path] = set()
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting.extend(_imports(path))
    return found


@functools.cache
def _content(path: Path) -> tuple[str, bytes]:
    """A source, and the digest of its name and content."""
    raw = path.read_bytes()
    return raw.decode(), hashlib.sha256(path.name.encode() + b"\0" + raw).digest()


@functools.cache
def _imports(path: Path) -> tuple[Path, ...]:
    """The Tidecast modules that a source names in import statements, wherever they stand."""
    return tuple(p for name in _imported_names(_content(path)[0]) for p in _sources(name))


def _imported_names(source: str) -> Iterator[str]:
    for module, plain, names in _IMPORT.findall(source):
        if plain:
            yield plain
            continue
        yield module
        yield from (f"{module}.{name}" for name in _NAME.findall(names))


@functools.cache
def _sources(name: str) -> tuple[Path, ...]:
    """The files of a module of this package; none for its root, whose exports are lazy."""
    first, *rest = name.split(".")
    if first != _PACKAGE.name or not rest:
        return ()
    at = _PACKAGE.joinpath(*rest)
    return tuple(p for p in (at.with_suffix(".py"), at / "__init__.py") if p.is_file())


class _BySources(_CacheLocator):  # type: ignore[misc]
    """Where Numba keeps a kernel: `build_directory` of its module."""

    def __init__(self, fn: Callable[..., Any], source: Path) -> None:
        self._py_file = str(source)
        self._line = fn.__code__.co_firstlineno
        self._directory = _directory_of(source)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _BySources:
        """Numba's constructor."""
        return cls(py_func, Path(py_file))

    def get_cache_path(self) -> str:
        """The directory."""
        return str(self._directory)

    def get_source_stamp(self) -> str:
        """The mark of a stale entry: the directory's name holds it already."""
        return self._directory.name

    def get_disambiguator(self) -> str:
        """The mark that keeps functions of one name apart."""
        return str(self._line)


_directory_of = functools.cache(build_directory)


class _KernelCacheImpl(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_BySources,)


class _KernelCache(FunctionCache):  # type: ignore[misc]
    _impl_class = _KernelCacheImpl

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Like Numba's method, without `target_context.refresh()`.

        `refresh` collects data for the compiler, 0.35 s of CPU in each process. A kernel that is
        loaded does not need it; each compilation calls it first.
        """
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


_OPTIONS: dict[str, Any] = {"error_model": "numpy", "boundscheck": BOUNDSCHECK}


def _cached(fn: Callable[..., Any], nogil: bool) -> Any:
    # Functions that are called by address (`objects.builtin`) hold the lock.
    dispatcher = numba.njit(
        nogil=nogil, no_cfunc_wrapper=nogil, pipeline_class=Compiler, **_OPTIONS
    )(fn)
    if Path(inspect.getfile(fn)).exists():  # not for a function typed into a shell
        dispatcher._cache = _KernelCache(fn)
    return dispatcher


def kernel(fn: Callable[..., Any]) -> Any:
    """Compile ``fn`` as a kernel that runs without the interpreter lock. Cached on disk."""
    return _cached(fn, nogil=True)


def held_kernel(fn: Callable[..., Any]) -> Any:
    """Compile ``fn`` as a kernel that keeps the interpreter lock: atomic for Python threads."""
    return _cached(fn, nogil=False)


_INSIDE: dict[str, Any] = {
    **_OPTIONS,
    "nogil": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
_PARTS: dict[str, Any] = {**_INSIDE, "pipeline_class": Compiler}


def inlined(fn: Callable[..., Any]) -> Any:
    """Compile ``fn`` for use inside kernels only; never entered from Python, so never cached."""
    return numba.extending.register_jitable(**_PARTS)(fn)


def hot(fn: Callable[..., Any]) -> Any:
    """Like `inlined`, and copied into its callers: for small functions, and those of each message.

    A call takes arrays apart into some thirty words on the stack.
    """
    return numba.extending.register_jitable(forceinline=True, **_PARTS)(fn)


def users(fn: Callable[..., Any]) -> Any:
    """Compile a user's function, which may allocate, or its caller, for `closure_kernel`."""
    return numba.extending.register_jitable(**_INSIDE)(fn)


def closure_kernel(fn: Callable[..., Any]) -> Any:
    """Compile a closure over a user's function; releases the interpreter lock, never on disk.

    The disk cache would not notice an edit of the user's file, and would run the user's old code.
    """
    return numba.njit(nogil=True, **_OPTIONS)(fn)
