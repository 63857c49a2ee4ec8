"""Faults put into the platform on purpose: random worlds find each of them, by the right check."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from tests.swarm.script import draw
from tests.swarm.seeds import complaints

from tidecast.agents.puller import entries
from tidecast.client.consumer.message import DurableMessage
from tidecast.client.core.subscription import SubscriptionCore
from tidecast.node.consumers import service
from tidecast.node.consumers.dead_letters import DeadLetters
from tidecast.node.consumers.service import DurableSubscriptions
from tidecast.node.consumers.state import restored_rows
from tidecast.protocol.dedup import ProducerTable

pytestmark = pytest.mark.long
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


def gaps_swallowed() -> Any:
    """Subscriptions pass over what is lost in silence."""
    return mock.patch.object(SubscriptionCore, "_on_gap", return_value=None)


FAULTS: list[tuple[Fault, str, int]] = [
    (producers_forgotten, "stored_once", 1),
    (producers_forgotten, "log_keeps_key_order", 1),
    (positions_too_far, "all_is_handled", 1),
    (pauses_rewind, "positions_never_go_back", 2),
    (refusals_overtaken, "handlers_see_key_order", 1),
    (letters_dropped, "dead_letters_are_earned", 9),
    (gaps_swallowed, "live_losses_are_reported", 2),
]
"""A fault, the check that complains, and the first seed whose world found it."""


def found_by(check: str, first: int) -> Iterator[int]:
    """Seeds whose worlds complain by a check."""
    for seed in range(first, first + WORLDS_MAX):
        if any(each.check == check for each in complaints(draw(seed))):
            yield seed


@pytest.mark.parametrize(("fault", "check", "first"), FAULTS)
def test_random_worlds_find_a_planted_fault(fault: Fault, check: str, first: int) -> None:
    with fault():
        assert next(found_by(check, first), None) is not None
