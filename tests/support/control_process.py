"""The control service as a process of its own, on a Postgres of its own, that tests may kill."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2 as httpx

from tests.support.control import ADMIN_PASSWORD, log_in_first_admin
from tests.support.patience import wait_ended

STOP_S = 20.0
_FIRST = re.compile(r"log in as admin with password (\S+)")


class ControlProcess:
    """``python -m tidecast_control`` on ``data_dir``. `start` again after `kill` or `stop`."""

    def __init__(self, data_dir: Path, *, host: str = "", **environment: str) -> None:
        """``host``: the address that it listens on; empty: its default, loopback."""
        self.data_dir, self._host = data_dir, host
        self._environment = {k: v for k, v in os.environ.items() if k != "TIDECAST_DATABASE_URL"}
        self._environment |= environment
        self._port = 0
        self.process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> None:
        """Until it serves; after the first time on the same port."""
        command = [
            sys.executable,
            "-m",
            "tidecast_control",
            "--data-dir",
            str(self.data_dir),
            "--port",
            str(self._port),
            *(["--host", self._host] if self._host else []),
        ]
        log = (self.data_dir / "control.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        told: list[str] = []
        for line in self.process.stdout:
            told.append(line)
            if line.strip() == "ready":
                break
        text = "".join(told)
        assert text.endswith("ready\n"), text + self.log
        self.url = text.partition("control service: ")[2].split()[0]
        self._port = int(self.url.rpartition(":")[2])
        first = _FIRST.search(text)
        if first is not None:
            with self.client() as client:
                log_in_first_admin(client, first[1])  # type: ignore[arg-type]

    @property
    def log(self) -> str:
        """The text of its log."""
        return (self.data_dir / "control.log").read_text("utf-8", "replace")

    def client(self) -> httpx.Client:
        """A client that is not logged in."""
        return httpx.Client(base_url=self.url, timeout=30)

    def admin(self) -> httpx.Client:
        """The admin's client, at /api/v1."""
        with self.client() as client:
            body = {"user": "admin", "password": ADMIN_PASSWORD}
            answer = client.post("/api/v1/auth/login", json=body)
            assert answer.status_code == 200, answer.text
            headers: dict[str, Any] = {"X-CSRF-Token": answer.json()["csrf_token"]}
            return httpx.Client(
                base_url=f"{self.url}/api/v1",
                headers=headers,
                timeout=30,
                cookies=dict(client.cookies),
            )

    @property
    def postgres_pid(self) -> int:
        """Of the server that the service started."""
        return int((self.data_dir / "postgres" / "postmaster.pid").read_text().split()[0])

    def kill_postgres(self) -> None:
        """``kill -9``."""
        os.kill(self.postgres_pid, signal.SIGKILL)

    def kill(self) -> None:
        """``kill -9`` of the service; its Postgres stays."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and wait: Postgres ends too."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                wait_ended(self.process, STOP_S)
            except subprocess.TimeoutExpired:
                raise AssertionError(self.log[-3000:]) from None
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
