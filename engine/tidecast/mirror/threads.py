"""The threads of a mirror, one for each queue, and the thread that watches them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping


def run_together(
    jobs: Mapping[str, Callable[[], None]],
    watch: Callable[[], None],
    *,
    every_s: float,
    halt: Callable[[], None],
    release: Callable[[], None] = lambda: None,
) -> None:
    """Run each job in a thread of its name; return when all have ended.

    ``watch`` is called at least once in ``every_s`` while one runs. When it raises, ``halt`` asks
    the jobs to end, and the error is raised once they have ended. ``release`` is called before the
    last wait for them, to end the calls that they wait in.
    """
    threads = [threading.Thread(target=job, name=name) for name, job in jobs.items()]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                watch()
                thread.join(every_s)
    except BaseException:
        halt()
        raise
    finally:
        release()
        for thread in threads:
            thread.join()
