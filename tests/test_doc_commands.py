"""Every command of a ```bash block in README and docs/ is run, on a platform of its own.

What cannot be run here stands in `ELSEWHERE`, with the reason.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx2 as httpx
import pytest
from markdown_it import MarkdownIt

from tests.project import ROOT
from tests.support.control import log_in_first_admin

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND_S, STAYS_S = 180.0, 6.0  # beside other work, Spark's warm-up took more than 60 s

ELSEWHERE = {
    r"make (up|dashboard|install(-dev)?|test|test-.*|lint|format|docs)\b": "what CI and e2e do",
    r"make install-spark\b": "half a gigabyte",
    r"TIDECAST_BOUNDSCHECK=1 .*pytest": "make test-checked",
    r"sudo ": "changes the machine",
    r"docker ": "there is no docker here",
    r"tidecast bench ": "tests/test_bench_contract.py",
    r"tidecast engine --control https://control\.example": "another host: tests/e2e",
    r"tidecast engine --gateway 0\.0\.0\.0": "another host: tests/system/test_gateway_processes.py",
    r"tidecast engine --kafka ": "tests/system/test_kafka_process.py",
    r"tidecast (sub|pub|subscription) .*--server tidecast\S*://db1\.example": "the same",
    r"tidecast topic create \S+ .*--transport wan": "a network of its own",
    r"TIDECAST_DATABASE_URL=postgresql://\.\.\. ": "tests/control/test_migrations.py",
    r"tidecast (up --no-control|control --port 7480)": "tests/system, tests/e2e: a platform each",
    r"(\S*python) -m tidecast_control\.openapi": "tests/control/test_openapi.py",
    r"tidecast (request|reply) ": "tests/system/test_request_commands.py",
    r"tidecast down": "it would end the platform of the other commands: tests/e2e",
}
STAYS = (r"tidecast sub logs$",)
"""Run until somebody stops them. (`top` shows once what there is when it has no terminal.)"""
WAITS = r"tidecast sub (\S+) --count (\d+)"
"""End when so many messages came: they are published meanwhile."""
SPARK = r"tidecast pipeline (?!package)"
BEFORE = {
    "CONSUMING.md": [
        "tidecast topic create jobs --mode durable",
        "tidecast subscription create jobs workers",
    ],
    "OPERATING.md": [
        "tidecast topic create orders --mode durable",
        "tidecast subscription create orders billing",
        "tidecast pub orders --message one --quiet",
    ],
    "TUTORIAL.md": [
        "tidecast topic create orders --mode durable",
        "tidecast topic create orders.failed --mode durable",
        "tidecast subscription create orders pricing --dead-letter orders.failed",
    ],
    "SPARK.md": [
        "tidecast topic create orders --mode durable",
        "tidecast topic create orders2 --mode durable",
        "tidecast pub orders --message one --message two --key k --quiet",
    ],
}
"""The commands that run before those of a page."""
MAY_FAIL = {r"tidecast doctor": "it fails when it finds something about this machine"}


@dataclass(frozen=True)
class Command:
    """One line of a block."""

    page: str
    line: int
    text: str


def commands(path: Path) -> Iterator[Command]:
    """The commands of a page, in order."""
    for token in MarkdownIt("commonmark").parse(path.read_text("utf-8")):
        if token.type != "fence" or token.info.strip().split(" ")[0] != "bash":
            continue
        line = (token.map or [0])[0] + 2
        for row in token.content.replace("\\\n", "  ").split("\n"):
            text = re.sub(r"\s+#\s.*$", "", row).strip().replace(".venv/bin/", "")
            if text and not text.startswith("#"):
                yield Command(path.relative_to(ROOT).as_posix(), line, text)
            line += 1


ALL = {path: list(commands(path)) for path in PAGES}


def _reason(text: str) -> str | None:
    return next((why for what, why in ELSEWHERE.items() if re.match(what, text)), None)


@contextlib.contextmanager
def platform(*, control: bool) -> Iterator[dict[str, str]]:
    """An engine; on request with its service, and a key of that. What its commands find set."""
    with tempfile.TemporaryDirectory(prefix="tc-docs-") as data_dir:
        tools = Path(sys.executable).parent
        variables = {
            **os.environ,
            "TIDECAST_DATA_DIR": data_dir,
            "PATH": f"{tools}:{os.environ['PATH']}",
        }
        options = ["--port", "0"] if control else ["--no-control"]
        done = subprocess.run(
            ["tidecast", "up", "--detach", *options],
            env=variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        try:
            yield variables | (_key(done.stdout) if control else {})
        finally:
            subprocess.run(["tidecast", "down"], env=variables, timeout=60, check=False)


def _key(told: str) -> dict[str, str]:
    url = re.search(r"control service: (\S+)", told)
    password = re.search(r"with password (\S+)", told)
    assert url, told
    assert password, told
    with httpx.Client(base_url=url.group(1), timeout=30) as client:
        log_in_first_admin(cast("Any", client), password.group(1))
        made = client.post("/api/v1/keys", json={"name": "docs", "role": "admin"})
        assert made.status_code == 201, made.text
    return {"TIDECAST_KEY": made.json()["secret"]}


class Shell:
    """Runs the commands of a page in a directory of its own. `export` holds for later ones."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._directory, self._environment = directory, environment
        (directory / "app.log").write_text("one\ntwo\n")

    def start(self, text: str) -> subprocess.Popen[str]:
        """One command, as a shell reads it."""
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", f"exec {text}" if "|" not in text else text],
            cwd=self._directory,
            env=self._environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, text: str) -> tuple[int, str]:
        """Its exit code and what it said."""
        exported = re.fullmatch(r"export (\w+)=(\S*)", text)
        if exported:
            self._environment = self._environment | {exported[1]: exported[2]}
            return 0, ""
        with self.start(text) as process:
            try:
                said, _ = process.communicate(timeout=COMMAND_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            return process.returncode, said

    def stays(self, text: str) -> str | None:
        """Runs until it is stopped; what went wrong."""
        with self.start(text) as process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                said, _ = process.communicate(timeout=STAYS_S)
                return f"ended with {process.returncode}: {said}"
            process.terminate()
            process.communicate(timeout=COMMAND_S)
        return None

    def waits(self, text: str, topic: str, count: int) -> tuple[int, str]:
        """Publishes until it has had enough."""
        with self.start(text) as process:
            for _ in range(10):
                self.run(f"tidecast pub {topic} --message docs --count {count} --quiet")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    said, _ = process.communicate(timeout=2)
                    return process.returncode, said
            process.kill()
            return -1, "it never had enough messages"


def _wrong(shell: Shell, command: Command) -> str | None:
    """The failure of a command, if any."""
    text = command.text
    if any(re.match(pattern, text) for pattern in STAYS):
        return shell.stays(text)
    waiting = re.match(WAITS, text)
    if waiting:
        code, said = shell.waits(text, waiting.group(1), int(waiting.group(2)))
    else:
        code, said = shell.run(text)
    if code == 0 or any(re.match(pattern, text) for pattern in MAY_FAIL):
        return None
    return f"exit code {code}: {said}"


def _here(command: Command) -> bool:
    if re.match(SPARK, command.text) and importlib.util.find_spec("pyspark") is None:
        return False
    return _reason(command.text) is None


@pytest.mark.parametrize(
    "path", [p for p in PAGES if any(map(_here, ALL[p]))], ids=lambda p: p.name
)
def test_commands_run(path: Path, tmp_path: Path) -> None:
    control = "tidecast api " in path.read_text("utf-8")
    failed = []
    with platform(control=control) as environment:
        shell = Shell(tmp_path, environment)
        for text in BEFORE.get(path.name, ()):
            assert shell.run(text)[0] == 0, text
        for command in filter(_here, ALL[path]):
            wrong = _wrong(shell, command)
            if wrong:
                failed.append(f"{command.page}:{command.line}: {command.text}\n{wrong}")
    assert not failed, "\n".join(failed)


def test_what_is_left_out_is_there() -> None:
    texts = [command.text for found in ALL.values() for command in found]
    unused = [what for what in ELSEWHERE if not any(re.match(what, text) for text in texts)]
    assert not unused, f"nothing matches: {unused}"
