"""A mirror to Kafka: which batches of a block it takes, and its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tidecast.errors import ConfigError, Conflict
from tidecast.kafka.storing.notes import Mark
from tidecast.mirror.outbound import whole_batches
from tidecast.mirror.state import Saved, StateFile, Stored
from tidecast.queues.adapter import Record, pack

STORED = Stored(
    topic="orders", target="copy", producer=7, epoch=2, marks=[Mark(10, 3, 44), Mark(0, 0, -1)]
)


def test_batches_below_the_end_are_taken() -> None:
    parts = [pack([Record(b"x")] * n, first) for first, n in ((5, 3), (8, 2), (10, 4))]
    block = np.concatenate(parts)
    for end, batches in ((5, 0), (6, 1), (8, 1), (9, 2), (99, 3)):
        run, first = whole_batches(block, end)
        assert run.size == sum(each.size for each in parts[:batches])
        assert first == (5 if batches else -1)


def test_the_file_is_that_of_one_direction_and_one_process(tmp_path: Path) -> None:
    with StateFile(tmp_path, "a", "mirrors/kafka") as state:
        assert state.load_stored() is None
        state.save(STORED)
        assert state.load_stored() == STORED
        with pytest.raises(Conflict, match="runs already"):
            StateFile(tmp_path, "a", "mirrors/kafka")
    into = Saved(source="s", topic="t", place="queue", queues=1, starts={0: 1}, durable={0: 2})
    with StateFile(tmp_path, "a") as other:
        assert other.load() is None
        other.save(into)
        assert other.load() == into
        other.path.write_text("{}")
        with pytest.raises(ConfigError, match="delete it to begin again"):
            other.load()
