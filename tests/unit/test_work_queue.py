"""Work of the control link in a thread of its own."""

from __future__ import annotations

import threading

from tidecast.control_link.work_queue import WorkQueue


def test_jobs_run_once_and_in_order() -> None:
    work, done, found = WorkQueue("work"), threading.Event(), list[int]()
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
    work, begun, go, found = WorkQueue("work"), threading.Event(), threading.Event(), list[int]()

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
    WorkQueue("work").stop(1.0)
