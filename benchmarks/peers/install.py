"""Installs the peers into benchmarks/peers/.cache, from their registries.

    python3 benchmarks/peers/install.py [NAME...]

Names: aeron (C client and driver, out of the pyaeron wheel), aeron-java, fast-cast, pyaeron,
pyzmq, nats, jetstream, redis; all of them by default. Idempotent; ends with a line a peer, and with
exit code 1 if one is missing.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.peers import layout

STEP_SECONDS_MAX = 300
PYTHON_OLDEST = (3, 12)  # pyaeron's wheels
PYTHON_NEWEST = (3, 15)


class StepFailed(Exception):
    """A step that did not work, with the reason for the person."""


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run(*command: str) -> str:
    """Runs one step; its output if it worked, StepFailed with the last lines if not."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=STEP_SECONDS_MAX, check=False
        )
    except FileNotFoundError as error:
        raise StepFailed(f"{command[0]} is not on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise StepFailed(f"{command[0]} took more than {STEP_SECONDS_MAX} s") from error
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in lines if "ERROR" in line.upper()] or lines[-3:]
        raise StepFailed(f"{Path(command[0]).name}: " + " | ".join(errors[:2])[:400])
    return done.stdout


def python_candidates() -> Iterable[str]:
    for minor in (13, 12, 14):
        found = shutil.which(f"python3.{minor}")
        if found:
            yield found
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    if versions.is_dir():
        for version in sorted(versions.iterdir(), reverse=True):
            yield str(version / "bin" / "python")
    yield sys.executable


def python_for_peers() -> str:
    """A Python that pyaeron has wheels for."""
    for candidate in python_candidates():
        try:
            text = run(candidate, "-c", "import sys; print(*sys.version_info[:2])")
        except (StepFailed, PermissionError):
            continue
        major, minor = (int(part) for part in text.split())
        if PYTHON_OLDEST <= (major, minor) <= PYTHON_NEWEST:
            return candidate
    raise StepFailed("no Python 3.12 to 3.15 found (pyaeron has wheels for no other)")


def install_python(peer: str) -> None:
    if not layout.VENV_PYTHON.exists():
        python = python_for_peers()
        say(f"  virtual environment ({Path(python).name})")
        run(python, "-m", "venv", str(layout.CACHE / "venv"))
    say(f"  pip install {' '.join(layout.PYTHON_PACKAGES[peer])}")
    run(
        str(layout.VENV_PYTHON),
        *("-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *layout.PYTHON_PACKAGES[peer],
    )


def install_jars(coordinates: Iterable[str]) -> None:
    for jar in coordinates:
        if layout.jar_path(jar).exists():
            continue
        say(f"  maven {jar}")
        run(
            "mvn",
            *("--batch-mode", "--quiet", "dependency:copy"),
            f"-Dartifact={jar}",
            f"-DoutputDirectory={layout.JARS}",
        )
        if not layout.jar_path(jar).exists():
            raise StepFailed(f"maven copied no {layout.jar_path(jar).name}")


def compile_java(source: str, jars: Iterable[str]) -> None:
    say(f"  javac {source}")
    layout.CLASSES.mkdir(parents=True, exist_ok=True)
    run(
        "javac",
        *("-nowarn", "-d", str(layout.CLASSES)),
        *("-cp", ":".join(str(layout.jar_path(jar)) for jar in jars)),
        str(layout.JAVA_SOURCES / "Bench.java"),
        str(layout.JAVA_SOURCES / source),
    )


def install_aeron() -> None:
    install_python("pyaeron")
    say("  cc aeron_bench.c")
    run(
        os.environ.get("CC", "cc"),
        *("-O3", "-Wall", "-Wextra", "-shared", "-fPIC"),
        *("-o", str(layout.BENCH_LIBRARY), str(layout.C_SOURCE)),
    )


def install_aeron_java() -> None:
    install_jars((layout.AERON_JAR,))
    compile_java("AeronBench.java", (layout.AERON_JAR,))


def install_fast_cast() -> None:
    install_jars(layout.FAST_CAST_JARS)
    compile_java("FastCastBench.java", layout.FAST_CAST_JARS)


def install_redis() -> None:
    install_python("redis")
    layout.redis_server().chmod(0o755)


INSTALLERS: dict[str, Callable[[], None]] = {
    "aeron": install_aeron,
    "aeron-java": install_aeron_java,
    "fast-cast": install_fast_cast,
    "pyaeron": lambda: install_python("pyaeron"),
    "pyzmq": lambda: install_python("pyzmq"),
    "nats": lambda: install_python("nats"),
    "jetstream": lambda: install_python("jetstream"),
    "redis": install_redis,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in INSTALLERS]
    if unknown:
        say(f"no such peer: {', '.join(unknown)}; there are: {', '.join(INSTALLERS)}")
        return 2
    layout.INSTALLED.mkdir(parents=True, exist_ok=True)
    outcome: dict[str, str] = {}
    for name in names or INSTALLERS:
        say(f"{name} ...")
        marker = layout.INSTALLED / name
        try:
            INSTALLERS[name]()
        except StepFailed as error:
            marker.unlink(missing_ok=True)
            outcome[name] = f"NOT INSTALLED: {error}"
        else:
            marker.touch()
            outcome[name] = "installed"
    for name, text in outcome.items():
        say(f"{name:12} {text}")
    return 0 if all(text == "installed" for text in outcome.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
