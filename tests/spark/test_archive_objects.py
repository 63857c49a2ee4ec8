"""Archives in an object store, through Spark's own connector to a server on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import Eventually
from tests.support import object_store
from tests.support.lab import Lab, open_lab
from tests.support.object_store import BUCKET, SECRET, ObjectStore
from tests.support.spark_logs import append, records

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(object_store.missing()), reason=object_store.missing()),
]
JOB_S = 280.0


@pytest.fixture
def lab() -> Iterator[Lab]:
    with open_lab() as made:
        yield made


@pytest.fixture
def store(lab: Lab, eventually: Eventually) -> ObjectStore:
    made = ObjectStore(lab)
    eventually(made.create_bucket, "the bucket", timeout_s=60.0)
    return made


def ran(store: ObjectStore, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env=store.environment(),
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout
    assert SECRET not in done.stdout + done.stderr
    return done.stdout


def test_an_archive_on_an_object_store_grows_by_what_is_new_whatever_is_killed(
    store: ObjectStore, tmp_path: Path
) -> None:
    append(tmp_path, "orders", 0, records(300))
    append(tmp_path, "orders", 1, records(100))
    settings = json.dumps(store.settings())
    url = f"s3a://{BUCKET}/archives/orders"
    told = ran(store, "tests.support.object_archive", str(tmp_path), url, settings)
    found = json.loads(told.splitlines()[-1])
    assert (found["rows"], found["steps"]) == ([400, 0], 2)
    assert found["races"] == ["taken", "conflict"] * 2
    assert found["compacted"] > 1
    assert found["tokens"] == [[0, i] for i in range(300)] + [[1, i] for i in range(100)]
    assert found["plain"] == 400
    data = [name for name in found["files"] if name.endswith(".parquet")]
    assert len(data) == 1
    assert not any(name.startswith("_staging") for name in found["files"])


def test_commands_archive_to_an_object_store_and_replay_from_it(
    store: ObjectStore, tmp_path: Path
) -> None:
    append(tmp_path, "orders", 0, records(300))
    (tmp_path / "queues" / "again").mkdir()
    url = f"s3a://{BUCKET}/archives"
    confs = [
        word for key, value in store.settings().items() for word in ("--conf", f"{key}={value}")
    ]
    job = ("--data-dir", str(tmp_path), "--json", "--master", "local[2]", *confs)
    for rows in (300, 50):
        told = ran(
            store, "tidecast.cli", "pipeline", "archive", "--topic", "orders", "--out", url, *job
        )
        assert json.loads(told)["rows"] == rows
        append(tmp_path, "orders", 0, records(50, 300))
    words = ("--archive", url, "--from", "orders", "--topic", "again", "--dry-run")
    told = ran(store, "tidecast.cli", "pipeline", "replay", *words, *job)
    assert json.loads(told)["rows"] == 350
