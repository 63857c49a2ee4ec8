"""A Postgres server that ends with the process of its test, however that process ends.

`pg_ctl` makes the server a process of its own: it ran on when a test was cut off by a signal.
`python -m tests.support.postgres DIRECTORY` waits for the end of its standard input, which is a
pipe whose other end the process of the test holds, and then removes the server.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.process import ROOT
from tidecast_control.postgres import EmbeddedPostgres


@contextmanager
def postgres_server(directory: Path, settings: dict[str, str]) -> Iterator[EmbeddedPostgres]:
    """A server below ``directory``, which is removed with it."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.postgres", str(directory)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        start_new_session=True,  # a signal to the group of the test leaves it alone
    ) as remover:
        assert remover.stdin is not None
        server = EmbeddedPostgres(directory / "pg", settings)
        server.start()
        yield server
        # Its end closes the pipe, and waits for the remover.


def remove(directory: Path) -> None:
    """End the server below ``directory``, if there is one, and remove all of it."""
    if (directory / "pg").is_dir():
        EmbeddedPostgres(directory / "pg").stop("immediate")
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.read()
    remove(Path(sys.argv[1]))
