"""A seed's world, run and checked: what a worker of the search does."""

from __future__ import annotations

import time
import traceback

from tests.swarm.checker import Complaint, check
from tests.swarm.script import Script, draw
from tests.swarm.world import run


def complaints(script: Script) -> list[Complaint]:
    """The complaints about a script's world; an exception is a complaint, too."""
    try:
        return check(run(script))
    except Exception as problem:  # noqa: BLE001 - whatever a world raises is a finding
        where = traceback.extract_tb(problem.__traceback__)[-1]
        text = f"{type(problem).__name__} at {where.name}: {problem}"
        return [Complaint(f"raised {type(problem).__name__}", text)]


def world(seed: int) -> tuple[int, list[Complaint], float]:
    """Run the world of a seed: the seed, what is wrong, seconds."""
    began = time.perf_counter()
    return seed, complaints(draw(seed)), time.perf_counter() - began
