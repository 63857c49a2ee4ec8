"""Verifies a queue's files without changing them: lists their content and damaged batches.

Works beside a running engine: the engine may be writing the tail of the active segment.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tidecast.layout import segment as lay
from tidecast.log.batch import BAD_LENGTH, CAUSES, SHORT
from tidecast.log.files import check_segment_header, segment_name
from tidecast.log.reading import scan
from tidecast.log.repair.damage import next_sound
from tidecast.log.repair.recovery import segments_in

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a file and its place. ``token``: the first that cannot be read, or -1.

    ``position`` -1: the file as a whole. ``queue`` -1: no single queue.
    """

    topic: str
    queue: int
    file: Path
    position: int
    token: int
    what: str

    def __str__(self) -> str:
        if self.position < 0:
            return f"{self.topic}: {self.file}: {self.what}"
        return (
            f"{self.topic} queue {self.queue} token {self.token}: {self.file} at byte "
            f"{self.position}: {self.what}"
        )


@dataclass(slots=True)
class Report:
    """The contents of a queue, and their defects."""

    topic: str
    queue: int
    segments: int = 0
    bytes: int = 0
    batches: int = 0
    records: int = 0
    first_token: int = 0
    next_token: int = 0
    tail_bytes: int = 0
    """Bytes behind the last sound batch: being written now, or torn (recovery sets them aside)."""
    problems: list[Problem] = field(default_factory=list)
    last_seqs: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """Nothing is wrong."""
        return not self.problems


def queue_bytes(directory: Path) -> int:
    """Bytes of a queue's segments. Segments that retention removes meanwhile do not count."""
    total = 0
    for base in segments_in(directory):
        with suppress(FileNotFoundError):
            total += (directory / segment_name(base)).stat().st_size
    return total


def verify_queue(directory: Path, topic: str, queue: int, progress: Progress) -> Report:
    """Walk through every batch of every segment. ``progress`` gets the bytes of each step."""
    report = Report(topic, queue)
    bases = segments_in(directory)
    report.first_token = report.next_token = bases[0] if bases else 0
    for base, following in zip(bases, [*bases[1:], -1], strict=True):
        path = directory / segment_name(base)
        try:
            _segment(report, path, base, following, progress)
        except FileNotFoundError:
            continue  # retention was quicker
        report.segments += 1
    return report


def _bad(report: Report, path: Path, position: int, token: int, what: str) -> None:
    report.problems.append(Problem(report.topic, report.queue, path, position, token, what))


def _segment(report: Report, path: Path, base: int, following: int, progress: Progress) -> None:
    size = path.stat().st_size
    head = path.open("rb").read(lay.SEGMENT_HEADER_BYTES)
    problem = check_segment_header(head, base, report.topic, report.queue)
    if problem:
        _bad(report, path, 0, base, problem)
        return
    if base != report.next_token and report.segments:
        _bad(report, path, 0, report.next_token, f"tokens {report.next_token}..{base} are missing")
    report.bytes += size
    token, at = base, lay.SEGMENT_HEADER_BYTES
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        scanner = scan.Scanner(fd, size, base)
        while True:
            while (rows := scanner.next_rows()).shape[0]:
                _rows(report, path, rows)
                progress(scanner.position - at)
                at = scanner.position
            token = scanner.token
            if scanner.position >= size:
                break
            found = next_sound(fd, scanner.position + 1, token, size)
            if following < 0 and found < 0 and scanner.cause in (SHORT, BAD_LENGTH):
                report.tail_bytes = size - scanner.position
                break
            _bad(report, path, scanner.position, token, CAUSES[scanner.cause])
            if found < 0:
                break
            scanner.reset(found)  # continue behind the damage
            progress(scanner.position - at)
            at = scanner.position
    finally:
        os.close(fd)
    report.next_token = following if following >= 0 else token
    if 0 <= following != token and report.sound:
        _bad(report, path, at, token, f"it ends at token {token}, the next begins at {following}")


def _rows(report: Report, path: Path, rows: np.ndarray) -> None:
    report.batches += rows.shape[0]
    report.records += int(rows[:, scan.C_COUNT].sum())
    for row in rows[rows[:, scan.C_PRODUCER] != 0].tolist():
        producer, first, last = row[scan.C_PRODUCER], row[scan.C_BASE_SEQ], row[scan.C_LAST_SEQ]
        before, epoch = report.last_seqs.get(producer, (0, 0))
        if first <= before:
            _bad(
                report,
                path,
                row[scan.C_POSITION],
                row[scan.C_BASE_TOKEN],
                f"sequence {first} of producer {producer:x} is there already (up to {before})",
            )
        if row[scan.C_EPOCH] < epoch:
            _bad(
                report,
                path,
                row[scan.C_POSITION],
                row[scan.C_BASE_TOKEN],
                f"epoch {row[scan.C_EPOCH]} of producer {producer:x} behind epoch {epoch}",
            )
        report.last_seqs[producer] = (max(last, before), max(row[scan.C_EPOCH], epoch))
