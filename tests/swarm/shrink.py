"""A shorter script that fails alike: steps are left out while the same check still complains."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.swarm.script import Script, Step

TRIES_MAX = 400


def shrink(script: Script, fails: Callable[[Script], bool], tries: int = TRIES_MAX) -> Script:
    """Leave out runs of steps, halves first, down to single ones (delta debugging, ddmin)."""
    steps = list(script.steps)
    size = max(1, len(steps) // 2)
    while tries > 0:
        shorter = _without_one_run(script, steps, size, fails, tries)
        found, used = shorter
        tries -= used
        if found is not None:
            steps = found
        elif size == 1:
            break
        else:
            size = max(1, size // 2)
    return Script(script.settings, steps)


def _without_one_run(
    script: Script, steps: Sequence[Step], size: int, fails: Callable[[Script], bool], tries: int
) -> tuple[list[Step] | None, int]:
    used = 0
    for first in range(0, len(steps), size):
        if used >= tries:
            break
        shorter = [*steps[:first], *steps[first + size :]]
        used += 1
        if fails(Script(script.settings, shorter)):
            return shorter, used
    return None, used
