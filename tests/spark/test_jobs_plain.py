"""The parts of the jobs without a JVM: the archive's log, advice, the package, the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import click
import pytest
from click.testing import CliRunner, Result

from tidecast.cli import main
from tidecast.cli.pipelines import run as pipeline_run
from tidecast.cli.pipelines.run import settings_of
from tidecast.errors import ConfigError, Conflict, NotFound, StorageError
from tidecast_spark.failures import platform_error
from tidecast_spark.jobs.archive import archive
from tidecast_spark.jobs.archive_log import STAGED_S, ArchiveLog, Commit
from tidecast_spark.jobs.archive_store import is_url, store_of
from tidecast_spark.jobs.capacity import Minute, advise, page
from tidecast_spark.jobs.rollup import RollupReport
from tidecast_spark.package import write_package

START = datetime(2026, 1, 1, tzinfo=UTC)


def _file(log: ArchiveLog, staging: str, name: str) -> str:
    path = log.directory / "_staging" / staging / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(name)
    return str(path.relative_to(log.directory))


def test_a_commit_is_finished_by_the_next_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ArchiveLog(tmp_path)
    one = _file(log, "a", "one.parquet")
    with monkeypatch.context() as patch:
        patch.setattr(ArchiveLog, "complete", lambda *_: None)
        log.commit(Commit(0, {"t": {"0": 5}}, {"topic=t/0-0.parquet": one}, [], 5))
    assert not (tmp_path / "topic=t").exists()
    snapshot = ArchiveLog(tmp_path).open()
    assert (snapshot.version, snapshot.rows, snapshot.positions) == (0, 5, {"t": {"0": 5}})
    assert [Path(p).read_text() for p in log.paths(snapshot)] == ["one.parquet"]
    two = _file(log, "b", "two.parquet")
    removed = ["topic=t/0-0.parquet"]
    log.commit(Commit(1, snapshot.positions, {"topic=t/1-0.parquet": two}, removed, 0))
    snapshot = log.open()
    assert [Path(p).name for p in log.paths(snapshot)] == ["1-0.parquet"]
    assert [p.name for p in (tmp_path / "topic=t").iterdir()] == ["1-0.parquet"]
    assert snapshot.rows == 5


def test_two_jobs_cannot_make_the_same_version(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path)
    log.commit(Commit(0, {}, {}, [], 0))
    with pytest.raises(Conflict, match="another job has made version 0"):
        ArchiveLog(tmp_path).commit(Commit(0, {"t": {"0": 1}}, {}, [], 1))
    assert log.open().positions == {}
    assert [p.name for p in (tmp_path / "_tidecast").iterdir()] == ["000000000000.json"]


def test_a_job_leaves_the_staged_files_of_other_jobs(tmp_path: Path) -> None:
    """A job that begins while another one writes, or has committed and moves its files."""
    log, now_s = ArchiveLog(tmp_path), 1_800_000_000.0
    fresh, old = _file(log, "running", "one.parquet"), _file(log, "killed", "two.parquet")
    for path in (tmp_path / old, (tmp_path / old).parent):
        os.utime(path, (now_s - STAGED_S - 1, now_s - STAGED_S - 1))
    os.utime(tmp_path / fresh, (now_s - STAGED_S + 1, now_s - STAGED_S + 1))
    ArchiveLog(tmp_path).sweep(now_s)
    assert [path.name for path in (tmp_path / "_staging").iterdir()] == ["running"]
    log.commit(Commit(0, {"t": {"0": 5}}, {"topic=t/0-0.parquet": fresh}, [], 5))
    assert [Path(p).read_text() for p in log.paths(log.open())] == ["one.parquet"]
    assert not list((tmp_path / "_staging").iterdir())


def test_a_commit_of_a_file_that_is_gone_is_none(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path)
    one = _file(log, "a", "one.parquet")
    (tmp_path / one).unlink()
    with pytest.raises(StorageError, match="the job wrote this file and it is gone: run the job"):
        log.commit(Commit(0, {"t": {"0": 5}}, {"topic=t/0-0.parquet": one}, [], 5))
    assert log.open().positions == {}


def test_a_file_of_the_log_that_is_in_no_place_is_reported(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path)
    one = _file(log, "a", "one.parquet")
    log.commit(Commit(0, {"t": {"0": 5}}, {"topic=t/0-0.parquet": one}, [], 5))
    assert log.open().rows == 5, "moved before"
    (tmp_path / "topic=t/0-0.parquet").unlink()
    with pytest.raises(StorageError, match=r"topic=t/0-0\.parquet is in the log of the archive"):
        log.open()


def test_files_that_a_job_could_not_write_whole_are_removed(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path)

    def write() -> None:
        with log.staging() as staging:
            _file(log, Path(staging).name, "one.parquet")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert not list((tmp_path / "_staging").iterdir())


def test_an_archive_is_a_directory() -> None:
    with pytest.raises(ConfigError, match="must be a directory"):
        ArchiveLog(Path("s3://bucket/x"))


def _minutes(n: int, **changes: float) -> list[Minute]:
    plain = {
        "in_per_s": 1000.0,
        "bytes_per_s": 1e6,
        "retransmit_ratio": 0.001,
        "history_fill": 0.1,
        "cache_fill": 0.3,
        "cache_bytes": 5e6,
        "spilled": 0,
        "lag": 10,
    }
    return [Minute(at=START + timedelta(minutes=i), **(plain | changes)) for i in range(n)]  # type: ignore[arg-type]


def test_advice_follows_the_peak_and_says_why() -> None:
    one = advise("orders", [*_minutes(199), *_minutes(1, bytes_per_s=1e9)])
    assert one.spec == {"rate_bytes_per_s": 1_572_864, "history_bytes": 4_194_304}
    assert one.reasons[-1] == "cache_bytes: as it is: no slow reader had to read the log again"
    assert one.peak_bytes_per_s == 1e6, "one odd minute in two hundred does not count"
    assert one.reasons[0].startswith("rate_bytes_per_s: 99 % of all minutes stayed below 1,000,000")
    lossy = advise("orders", _minutes(100, retransmit_ratio=0.05, bytes_per_s=1e7, spilled=3))
    assert lossy.spec["history_bytes"] == 50_331_648
    assert lossy.spec["cache_bytes"] == 12_582_912
    assert "5.0% of the packets were sent again" in lossy.reasons[1]
    assert "300 blocks were given up while slow readers rested" in lossy.reasons[3]
    full = advise("orders", _minutes(100, history_fill=0.95, bytes_per_s=1e7))
    assert full.spec["history_bytes"] == 50_331_648
    assert "rings were 95% full" in full.reasons[1]
    assert one.change == {
        "method": "PATCH",
        "path": "/api/v1/topics/orders",
        "body": {"spec": one.spec},
    }
    assert advise("quiet", _minutes(5, bytes_per_s=0, cache_bytes=0)).spec == {
        "rate_bytes_per_s": 1,
        "history_bytes": 4_194_304,
    }


def test_the_report_is_one_page_with_plots_and_no_raw_names() -> None:
    minutes = {"a<b>": _minutes(3)}
    html = page([advise("a<b>", minutes["a<b>"])], minutes, START)
    assert html.count("<svg") == 5
    assert "a<b>" not in html
    assert "a&lt;b&gt;" in html
    assert "http" not in html
    assert "tidecast pipeline rollup" in page([], {}, START)


def test_spark_exceptions_give_back_the_platforms_error() -> None:
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):\n  File x\n"
        "tidecast.errors.NotFound: option topic: 'x': no durable topic\n SQLSTATE: 38000"
    )
    found = platform_error(RuntimeError(text))
    assert type(found) is NotFound
    assert str(found) == "option topic: 'x': no durable topic"
    assert platform_error(RuntimeError("something else")) is None


def test_the_package_is_enough_to_import_the_source(tmp_path: Path) -> None:
    out = tmp_path / "tidecast.zip"
    assert write_package(out) > 100
    code = (
        "import tidecast_spark.source, tidecast, pyspark_tidecast as p; "
        "raise SystemExit(tidecast.__file__ + ' ' + p.DefaultSource.name())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(out)!r}); {code}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ran.stderr.strip() == f"{out}/tidecast/__init__.py tidecast"


def test_the_command_line_tells_wrong_use_without_a_jvm(tmp_path: Path) -> None:
    run = CliRunner().invoke
    found = run(main, ["pipeline", "archive", "--out", str(tmp_path), "--conf", "x"])
    assert found.exit_code == 2
    assert "--conf x: give KEY=VALUE" in found.output
    found = run(main, ["pipeline", "package", "--out", str(tmp_path / "x.zip")])
    assert found.exit_code == 0
    assert "spark-submit --py-files" in found.output


def _job(report: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    """`tidecast pipeline rollup` with a job of ours, without Spark."""

    def job(_spark: Any, *_arguments: Any, **_options: Any) -> Any:
        if isinstance(report, BaseException):
            raise report
        return report

    parts: dict[str, Any] = {"rollup": job, "session": MagicMock(), "spark_errors": nullcontext}
    monkeypatch.setattr(pipeline_run, "load_spark", lambda _module, name: parts[name])
    return CliRunner().invoke(main, ["pipeline", "rollup", "--out", "x", *arguments])


def test_a_job_says_what_it_did_in_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _job(RollupReport(2, 700, 3, 1), monkeypatch, "--json")
    assert found.exit_code == 0
    told = json.loads(found.stdout)
    assert list(told) == [
        "job",
        "ok",
        "rows",
        "errors",
        "started_at",
        "duration_s",
        "report",
        "error",
    ]
    assert (told["job"], told["ok"], told["rows"], told["errors"]) == ("rollup", True, 700, 4)
    assert told["report"] == {"batches": 2, "rows": 700, "late": 3, "malformed": 1}
    assert datetime.fromisoformat(told["started_at"]).tzinfo is UTC
    assert told["duration_s"] >= 0
    assert told["error"] is None
    assert "700" in _job(RollupReport(2, 700, 3, 1), monkeypatch).output


@pytest.mark.parametrize(
    ("problem", "code", "error"),
    [
        (ConfigError("postgres: no"), 1, ("config", "postgres: no", False)),
        (StorageError("full"), 1, ("storage", "full", True)),
        (RuntimeError("odd"), 1, ("error", "RuntimeError: odd", False)),
        (KeyboardInterrupt(), 130, ("stopped", "a signal stopped the job", True)),
    ],
)
def test_a_job_that_fails_says_so_in_the_same_shape(
    problem: BaseException,
    code: int,
    error: tuple[str, str, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = _job(problem, monkeypatch, "--json")
    told = json.loads(found.stdout)
    assert found.exit_code == code
    assert (told["ok"], told["rows"], told["errors"], told["report"]) == (False, 0, 1, None)
    assert told["error"] == dict(zip(("code", "message", "retryable"), error, strict=True))


def test_commits_are_plain_json(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path)
    log.commit(Commit(0, {"t": {"0": 5}}, {}, [], 5, 70))
    assert json.loads((tmp_path / "_tidecast" / "000000000000.json").read_text()) == {
        "version": 0,
        "positions": {"t": {"0": 5}},
        "added": {},
        "removed": [],
        "rows": 5,
        "bytes": 70,
    }


def test_keys_of_connectors_are_refused_on_a_command_line() -> None:
    for name in ("s3a.secret.key", "s3a.bucket.b.access.key", "azure.account.key.x"):
        with pytest.raises(click.UsageError, match="other users of this host can read"):
            settings_of((f"spark.hadoop.fs.{name}=x",))
    provider = "spark.hadoop.hadoop.security.credential.provider.path=jceks://file/x"
    assert len(settings_of((provider, "spark.hadoop.fs.s3a.endpoint=http://x"))) == 2


def test_a_place_is_a_directory_or_a_url(tmp_path: Path) -> None:
    assert is_url("s3a://bucket/x")
    assert not is_url("file:///x")
    assert not is_url("archive")
    assert not is_url(tmp_path)
    assert store_of(f"file://{tmp_path}/a%20b").root == tmp_path / "a b"
    with pytest.raises(ConfigError, match="--skip-corrupt needs an archive in a directory"):
        archive(None, tmp_path, "s3a://bucket/x", topic="t", skip_corrupt=True)
