"""The command of a pipeline's job: `tidecast pipeline ...`, as a list of words; no shell."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidecast.config.topology import is_pattern

FOLDER = "pipelines"
TELEMETRY_TOPIC = "tidecast.telemetry"
_URL = "TIDECAST_DATABASE_URL"


@dataclass(frozen=True)
class Command:
    """A program, its words, its environment."""

    words: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Place:
    """Where jobs find their files, Postgres and Spark."""

    data_dir: Path
    database_url: str
    spark_master: str

    @property
    def folder(self) -> Path:
        """Where archives, rollups and reports lie."""
        return self.data_dir / FOLDER


def words_of(spec: Mapping[str, Any], place: Place) -> list[str]:
    """The words after `tidecast`."""
    job = spec["job"]
    words = ["pipeline", "report" if job == "capacity" else job]
    rollups, archive = place.folder / spec["rollups"], place.folder / spec["archive"]
    match job:
        case "archive":
            which = "--pattern" if is_pattern(spec["topic"]) else "--topic"
            words += [which, spec["topic"], "--out", str(archive)]
        case "replay":
            words += ["--archive", str(archive), "--from", spec["source"], "--topic", spec["topic"]]
            for name in ("since", "until"):
                words += [f"--{name}", spec[name]] if spec[name] else []
            words += ["--rate", str(spec["rate"])]
        case "rollup" | "backfill":
            words += ["--out", str(rollups), "--topic", spec["topic"] or TELEMETRY_TOPIC]
        case "capacity":
            out = place.folder / "capacity.html"
            words += ["--rollups", str(rollups), "--out", str(out), "--hours", str(spec["hours"])]
    return [*words, "--master", place.spark_master, "--data-dir", str(place.data_dir), "--json"]


def command_of(spec: Mapping[str, Any], place: Place) -> Command:
    """The command to run. Only jobs that write rollups get the address of Postgres."""
    environment = {k: v for k, v in os.environ.items() if k != _URL}
    environment["PYTHONSAFEPATH"] = "1"  # Spark's workers, too, import nothing from where it began
    if spec["job"] in ("rollup", "backfill"):
        environment[_URL] = place.database_url
    return Command((sys.executable, "-m", "tidecast.cli", *words_of(spec, place)), environment)


def cli_of(spec: Mapping[str, Any], place: Place) -> str:
    """The same from the shell."""
    return shlex.join(["tidecast", *words_of(spec, place)])


def rows_of(report: Any) -> int | None:
    """How many rows a job's report speaks of."""
    value = report.get("rows") if isinstance(report, dict) else None
    return stored_count(value)


def stored_count(value: Any) -> int | None:
    """A count that a column of 64 bits holds; None: it is none."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value < 1 << 63 else None
