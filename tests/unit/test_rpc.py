"""Questions over any connection: results, errors, time-outs, late answers, a lost connection."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
from tests.support.hearing import LIMIT_S, HearingClock

from tidecast.api.frames.common import Reply, Working, encode_result, failure_of
from tidecast.api.rpc import Calls
from tidecast.errors import ConnectionLost, NotFound, StorageError, Timeout


def reply(number: int, value: Any) -> Reply:
    return Reply(id=number, result=encode_result(value))


def test_answers_come_in_any_order() -> None:
    calls = Calls("the peer")
    found: dict[int, Any] = {}
    numbers = [calls.begin(int, partial(found.__setitem__, n)) for n in range(3)]
    assert len({0, *numbers}) == 4
    for n in (2, 0, 1):
        calls.answer(reply(numbers[n], n * 10))
    calls.answer(reply(numbers[0], 7))  # nobody waits any more
    calls.answer(reply(99, 7))
    assert found == {2: 20, 0: 0, 1: 10}


def test_errors_travel_whole_and_nonsense_is_a_lost_connection() -> None:
    calls = Calls("the peer")
    problem = StorageError("full", 28)
    failure = failure_of(problem)
    with pytest.raises(StorageError, match="full") as raised:
        calls.ask(lambda n: calls.answer(Reply(id=n, failure=failure)), int, 30.0, "Stats")
    assert raised.value.errno == 28
    with pytest.raises(ConnectionLost, match="the peer sent an answer that cannot be read"):
        calls.ask(lambda n: calls.answer(reply(n, "text")), int, 30.0, "Stats")
    with pytest.raises(NotFound, match="x"):
        calls.ask(lambda n: calls.resolve(n, NotFound("x")), int, 30.0, "Stats")


def test_a_question_waits_while_the_other_side_works_on_it() -> None:
    calls, sent = Calls("the peer"), list[int]()
    clock, asked = HearingClock(calls), threading.Event()

    def work() -> None:
        assert asked.wait(30.0)
        for _ in range(8):  # much longer than the limit, and never silent for so long
            calls.hear(Working(id=sent[0], reason="it compiles"))
        calls.answer(reply(sent[0], 5))

    def send(number: int) -> None:
        sent.append(number)
        asked.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert calls.ask(send, int, LIMIT_S, "Open") == 5
    thread.join(30.0)
    assert clock.now_s > 2 * LIMIT_S
    calls = Calls("the peer")
    calls.hear(Working(id=1, reason="before"))
    with pytest.raises(Timeout, match=r"did not answer Open within 0\.05 s$"):
        calls.ask(lambda _: None, int, 0.05, "Open")
    with pytest.raises(Timeout, match=r"did not answer Open within 0\.05 s: it compiles$"):
        calls.ask(lambda n: calls.hear(Working(id=n, reason="it compiles")), int, 0.05, "Open")


def test_what_a_late_answer_opened_is_closed() -> None:
    calls = Calls("the peer")
    sent: list[int] = []
    undone: list[int] = []
    with pytest.raises(Timeout, match=r"the peer did not answer Open within 0\.001 s"):
        calls.ask(sent.append, int, 0.001, "Open", undone.append)
    calls.answer(reply(sent[0], 5))
    calls.answer(reply(sent[0], 5))
    assert undone == [5]
    with pytest.raises(Timeout):
        calls.ask(sent.append, int, 0.001, "Open", undone.append)
    calls.answer(Reply(id=sent[1], failure=failure_of(NotFound("x"))))  # it opened nothing
    assert undone == [5]


@pytest.mark.parametrize("comes", ["late", "just now"])
def test_an_interrupted_question_leaves_nothing_open(comes: str) -> None:
    calls = Calls("the peer")
    sent: list[int] = []
    undone: list[int] = []

    def interrupted(number: int) -> None:
        sent.append(number)
        if comes == "just now":
            calls.answer(reply(number, 5))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calls.ask(interrupted, int, 10.0, "Open", undone.append)
    calls.answer(reply(sent[0], 5))
    assert undone == [5]


def test_a_lost_connection_ends_every_question() -> None:
    calls, asked = Calls("the peer"), threading.Event()
    found: list[Any] = []
    problems: list[Exception] = []

    def ask() -> None:
        try:
            calls.ask(lambda _: asked.set(), int, 60.0, "Stats")
        except ConnectionLost as problem:
            problems.append(problem)

    thread = threading.Thread(target=ask)
    thread.start()
    assert asked.wait(30.0)
    calls.begin(int, found.append)
    calls.lose(ConnectionLost("gone"))
    thread.join(30.0)
    assert [str(each) for each in (*found, *problems)] == ["gone", "gone"]


def test_a_question_that_cannot_be_sent_is_answered_with_that() -> None:
    calls = Calls("the peer")
    found: list[Any] = []

    def send(number: int) -> None:
        raise ConnectionLost(f"question {number}")

    calls.ask_then(send, int, found.append)
    assert [str(each) for each in found] == ["question 1"]
    with pytest.raises(ConnectionLost, match="question 2"):
        calls.ask(send, int, 30.0, "Stats")
    calls.lose(ConnectionLost("gone"))
    assert len(found) == 1
