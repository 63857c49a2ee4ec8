"""Work of the control link in a thread of its own."""

from __future__ import annotations

import threading

from tidecast.control_link.work_queue import WorkQueue


def _raise(problem: Exception) -> None:
    raise problem


def test_jobs_run_once_and_in_order() -> None:
    work, done, found = WorkQueue("work", _raise), threading.Event(), list[int]()
    for n in range(100):
        work.submit(lambda n=n: found.append(n))  # type: ignore[misc]
    work.submit(done.set)
    assert done.wait(10)
    assert found == list(range(100))
    work.stop(10.0)
    work.stop(10.0)
    work.submit(lambda: found.append(-1))
    assert found == list(range(100))


def test_jobs_that_have_not_begun_are_forgotten() -> None:
    work, begun, go, found = (
        WorkQueue("work", _raise),
        threading.Event(),
        threading.Event(),
        list[int](),
    )

    def first() -> None:
        begun.set()
        assert go.wait(10)
        found.append(1)

    work.submit(first)
    assert begun.wait(10)
    work.submit(lambda: found.append(2))
    work.forget()
    work.submit(lambda: found.append(3))
    work.submit(lambda: work.submit(lambda: found.append(4)))
    done = threading.Event()
    go.set()
    work.submit(done.set)
    assert done.wait(10)
    work.stop(10.0)
    assert found[:2] == [1, 3]


def test_one_that_never_ran_stops() -> None:
    WorkQueue("work", _raise).stop(1.0)


def test_a_job_that_fails_is_reported_and_ends_no_other() -> None:
    problems = list[Exception]()
    work, done = WorkQueue("work", problems.append), threading.Event()
    failure = OSError("no space left on device")
    work.submit(lambda: _raise(failure))
    work.submit(done.set)
    assert done.wait(10)
    assert problems == [failure]
    work.stop(10.0)
