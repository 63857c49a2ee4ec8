"""Faults put into the platform on purpose: random worlds find each of them, by the right check."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tests.swarm import checker
from tests.swarm.script import draw
from tests.swarm.seeds import complaints

from tidecast.agents.puller import entries
from tidecast.agents.puller.runtime import Puller
from tidecast.client.consumer.message import DurableMessage
from tidecast.client.core.image import Image, ReadPosition
from tidecast.client.core.subscription import SubscriptionCore
from tidecast.layout import segment as lay
from tidecast.log import queue_log
from tidecast.log.files import segment_name
from tidecast.log.queue_log import LogReader
from tidecast.log.repair.recovery import recover, segments_in
from tidecast.node.consumers import service
from tidecast.node.consumers.dead_letters import DeadLetters
from tidecast.node.consumers.service import DurableSubscriptions
from tidecast.node.consumers.state import restored_rows
from tidecast.node.durable.archiver import ArchiverRuntime
from tidecast.protocol.dedup import ProducerTable

WORLDS_MAX = 20

Fault = Callable[[], contextlib.AbstractContextManager[Any]]


def producers_forgotten() -> Any:
    """An engine that starts does not know which messages its logs have."""
    return mock.patch.object(ProducerTable, "learn", return_value=None)


def positions_too_far() -> Any:
    """Subscriptions resume at the end of the log after a crash."""
    rows = restored_rows([], [])
    return mock.patch.object(service, "restored", lambda _, end: (end, rows))


def pauses_rewind() -> Any:
    """A pause moves a subscription back."""
    apply_pause = DurableSubscriptions.apply_pause

    def rewound(subs: DurableSubscriptions, subscription: Any, cursor: Any) -> None:
        apply_pause(subs, subscription, cursor)
        assert subs.puller is not None
        subs.puller.call(entries.seek_cursor, subs.puller.words, cursor.number, 0)

    return mock.patch.object(DurableSubscriptions, "apply_pause", rewound)


def refusals_overtaken() -> Any:
    """A client hands records over behind one of their key that it refused."""
    return mock.patch.object(DurableMessage, "held_back", False)


def letters_dropped() -> Any:
    """Dead letters are taken for stored, and are not."""
    return mock.patch.object(DeadLetters, "_publish", return_value=None)


def positions_lost() -> Any:
    """Subscriptions resume long before where they were after a crash."""
    rows = restored_rows([], [])
    return mock.patch.object(
        service, "restored", lambda saved, end: (max(min(saved.position, end) - 30, 0), rows)
    )


def tails_cut() -> Any:
    """A start cuts sound records off the end of a log."""

    def cut(directory: Path, topic: str, queue: int, on_rows: Any) -> Any:
        for base in segments_in(directory)[-1:]:
            path = directory / segment_name(base)
            os.truncate(path, max(path.stat().st_size - 1, lay.SEGMENT_HEADER_BYTES))
        return recover(directory, topic, queue, on_rows)

    return mock.patch.object(queue_log, "recover", cut)


def segments_left_out() -> Any:
    """Whoever reads a log gets every other block of it."""
    read = LogReader.read_block

    def every_other(reader: LogReader, token: int, buffer: Any) -> int:
        n = read(reader, token, buffer)
        if n:
            read(reader, reader.next_token, np.zeros_like(buffer))
        return n

    return mock.patch.object(LogReader, "read_block", every_other)


def syncs_forgotten() -> Any:
    """The archiver never gets its syncs."""
    return mock.patch.object(ArchiverRuntime, "sync_all", return_value=None)


def places_forgotten() -> Any:
    """A live subscription that lost its engine repeats what it had read."""
    position = Image.position

    def earlier(image: Image) -> ReadPosition | None:
        place = position(image)
        return None if place is None else place._replace(seq=max(place.seq - 3, 0))

    return mock.patch.object(Image, "position", earlier)


def gaps_swallowed() -> Any:
    """Subscriptions pass over what is lost in silence."""
    return mock.patch.object(SubscriptionCore, "_on_gap", return_value=None)


def clock_of_puller(seconds: float) -> Any:
    """The puller's time of day is ahead, or behind."""
    made = Puller.__init__

    def skewed(puller: Puller, *, wall_ns: Callable[[], int], **options: Any) -> None:
        made(puller, wall_ns=lambda: wall_ns() + int(seconds * 1e9), **options)

    return mock.patch.object(Puller, "__init__", skewed)


def times_too_early() -> Any:
    """Records are delivered before their delivery time."""
    return clock_of_puller(1.0)


def times_too_late() -> Any:
    """Records are held back long after their delivery time."""
    return clock_of_puller(-1.0)


FAULTS: list[tuple[Fault, str, int]] = [
    (producers_forgotten, "stored_once", 1),
    (producers_forgotten, "log_keeps_key_order", 1),
    (positions_too_far, "all_is_handled", 1),
    (pauses_rewind, "positions_never_go_back", 2),
    (refusals_overtaken, "handlers_see_key_order", 1),
    (letters_dropped, "dead_letters_are_earned", 9),
    (gaps_swallowed, "live_losses_are_reported", 2),
    (syncs_forgotten, "ends", 1),
    (tails_cut, "acked_is_stored", 1),
    (tails_cut, "delivered_is_stored", 3),
    (segments_left_out, "tokens_are_contiguous", 7),
    (positions_lost, "acked_does_not_come_again", 24),
    (places_forgotten, "live_order", 1),
    (times_too_early, "never_before_its_time", 1),
    (times_too_late, "keys_wait_for_what_is_due", 1),
]
"""A fault, the check that complains, and the first seed whose world found it."""


def found_by(check: str, first: int) -> Iterator[int]:
    """Seeds whose worlds complain by a check."""
    for seed in range(first, first + WORLDS_MAX):
        if any(each.check == check for each in complaints(draw(seed))):
            yield seed


def test_each_check_has_a_fault_that_it_finds() -> None:
    assert {check for _, check, _ in FAULTS} == {check.__name__ for check in checker.CHECKS}


@pytest.mark.long
@pytest.mark.parametrize(("fault", "check", "first"), FAULTS)
def test_random_worlds_find_a_planted_fault(fault: Fault, check: str, first: int) -> None:
    with fault():
        assert next(found_by(check, first), None) is not None
