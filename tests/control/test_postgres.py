"""The Postgres of our own: who may connect, and what it may do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Eventually
from tests.support.process import ROOT
from tidecast_control.postgres import EmbeddedPostgres, reachable

AS_ROOT = os.geteuid() == 0


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A directory that other users may not enter."""
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def server(closed: Path) -> Iterator[EmbeddedPostgres]:
    """A server below it."""
    made = EmbeddedPostgres(closed / "postgres", {"fsync": "off"})
    made.start()
    yield made
    made.stop("immediate")


def test_it_lets_in_its_own_user_alone_and_has_no_rights_to_lend(
    server: EmbeddedPostgres, closed: Path
) -> None:
    """It let in everybody of uid nobody as superuser, with the right to write any file."""
    server.start()  # idempotent
    with psycopg.connect(server.url, autocommit=True) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("postgres",)
        rules = "SELECT DISTINCT type, auth_method FROM pg_hba_file_rules"
        assert connection.execute(rules).fetchall() == [("local", "peer")]
        connection.execute("COPY (SELECT 1) TO PROGRAM 'cat /proc/self/status > status.txt'")
    status = (closed / "postgres" / "status.txt").read_text()
    effective = re.search(r"CapEff:\s*([0-9a-f]+)", status)
    assert effective is not None
    assert int(effective[1], 16) == 0
    if AS_ROOT:  # only then is there another user to try it
        assert "NoNewPrivs:\t1" in status
        psql = server._bin / "psql"
        command = [*server._as_user(), str(psql), "-h", str(server.sockets), "-U", "postgres"]
        refused = subprocess.run(
            [*command, "-c", "SELECT 1", "postgres"],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        assert refused.returncode != 0
        assert "authentication failed" in refused.stderr


def test_a_cluster_of_an_older_release_is_closed_too(server: EmbeddedPostgres) -> None:
    hba = server.directory / "pg_hba.conf"
    hba.write_text("local all all trust\n")
    server.start()
    assert hba.read_text() == "local all all peer map=tidecast\n"


def test_programs_that_nobody_may_enter_are_copied(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = closed / "pginstall" / "bin"
    folder.mkdir(parents=True)
    (folder / "postgres").write_text("x")
    monkeypatch.setattr("tempfile.tempdir", str(closed))
    monkeypatch.setattr("tidecast_control.postgres.stat.S_IXOTH", 0o001)
    copy = reachable(folder)
    assert copy != folder
    assert (copy / "postgres").read_text() == "x"
    assert reachable(folder) == copy
    shutil.rmtree(copy.parent)
    assert reachable(Path("/usr/bin")) == Path("/usr/bin")


def test_a_server_of_tests_ends_with_a_process_that_is_killed(
    short_dir: Path, eventually: Eventually
) -> None:
    """A run that `timeout` cut off left its server, and its databases in memory."""
    directory = short_dir / "server"
    directory.mkdir()
    code = (
        "import sys, pathlib\n"
        "from tests.support.postgres import postgres_server\n"
        "with postgres_server(pathlib.Path(sys.argv[1]), {'fsync': 'off'}):\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(directory)]
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        server = EmbeddedPostgres(directory / "pg")
        assert server.running()
        process.kill()
    eventually(lambda: not directory.exists(), "the end of the server", timeout_s=60.0)
    assert not server.running()
