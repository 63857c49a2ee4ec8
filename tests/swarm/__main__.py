"""``python -m tests.swarm``: worlds by new seeds for a while, on all cores; failures are shrunk."""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.swarm.checker import Complaint
from tests.swarm.script import Script, as_test, draw, dump, load
from tests.swarm.seeds import complaints, world
from tests.swarm.shrink import shrink

OUT = Path(".swarm")


def report(script: Script, problems: list[Complaint], name: str) -> None:
    """Print a failure and keep its script."""
    for each in problems:
        write(f"seed {name}: {each.check}: {each.text}")
    _keep(script, problems[0], name)


def shorten(script: Script, problem: Complaint, name: str) -> None:
    """Keep the shrunk script instead, if it fails again."""

    def fails(shorter: Script) -> bool:
        return any(each.check == problem.check for each in complaints(shorter))

    if not fails(script):
        write(f"seed {name}: it does not fail again by itself")
        return
    script = shrink(script, fails)
    write(f"seed {name}: {len(script.steps)} steps are left")
    _keep(script, problem, name)


def _keep(script: Script, problem: Complaint, name: str) -> None:
    OUT.mkdir(exist_ok=True)
    OUT.joinpath(f"{name}.json").write_text(dump(script))
    OUT.joinpath(f"{name}.py").write_text(as_test(script, f"seed_{name}", problem.text))


def write(line: str) -> None:
    """One line to the terminal."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def seeds_from(first: int) -> Iterator[int]:
    """Seeds without an end."""
    while True:
        yield first
        first += 1


def main() -> int:
    """Run; the exit status is 1 when a world failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.swarm", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long")
    parser.add_argument("--seed", type=int, default=None, help="the first seed; new each time")
    parser.add_argument("--worlds", type=int, default=0, help="at most so many (0: any number)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--script", type=Path, help="run one script (JSON) and nothing else")
    parser.add_argument("--no-shrink", action="store_true")
    given = parser.parse_args()
    if given.script is not None:
        found = complaints(load(given.script.read_bytes()))
        write(json.dumps([each._asdict() for each in found], indent=1))
        return 1 if found else 0
    from tidecast.agents.warmup import warm_up

    warm_up()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the pool ends its workers
    first = secrets.randbelow(1 << 31) if given.seed is None else given.seed
    write(f"first seed {first}")
    return search(first, given.seconds, given.worlds, given.workers, short=not given.no_shrink)


def search(first: int, seconds: float, most: int, workers: int, *, short: bool) -> int:
    """Worlds until the time is over, then shrink those that failed; 1 when one failed."""
    until = time.monotonic() + seconds
    done, shown = 0, time.monotonic()
    failed: list[tuple[int, Complaint]] = []
    seeds = seeds_from(first)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, context, max_tasks_per_child=200) as pool:
        waiting = {pool.submit(world, next(seeds)) for _ in range(2 * workers)}
        while waiting:
            ready, waiting = concurrent.futures.wait(
                waiting, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for each in ready:
                seed, problems, _ = each.result()
                done += 1
                if problems:
                    failed.append((seed, problems[0]))
                    report(draw(seed), problems, str(seed))
                if time.monotonic() < until and not (most and done + len(waiting) >= most):
                    waiting.add(pool.submit(world, next(seeds)))
            if time.monotonic() - shown > 10:
                shown = time.monotonic()
                write(f"{done} worlds, {len(failed)} failed, {max(0, until - shown):.0f} s left")
    for seed, problem in failed if short else []:
        shorten(draw(seed), problem, str(seed))
    write(f"{done} worlds, {len(failed)} failed, seeds {first} to {first + done - 1}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
