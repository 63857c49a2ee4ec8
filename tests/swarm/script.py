"""Scripts: what a world is made of, and the steps that happen in it, drawn from a seed.

A step is data, so that a script can be printed, shortened and run again. Steps name clients by
number; `world` takes the number modulo the clients that it has, so that a step stays valid when
other steps are left out.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

NODES = ("a", "b", "c")
"""Node ``a`` owns the durable topic."""
STEPS_MIN, STEPS_MAX = 20, 90
RUN_US_MAX = 400_000
LANES_MAX = 3


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a whole world."""

    seed: int
    drop: float
    duplicate: float
    reorder: float
    delay_us: float
    queues: int
    fsync: str
    flow: str
    live_history_bytes: int
    producers: int
    subscriptions: int
    members: int
    max_in_flight: int
    ack_wait_s: float
    keys: int
    nak_share: float
    term_share: float
    retention_bytes: int
    """0: nothing is deleted."""
    power: bool
    """The owner's machine may lose its power; no live clients are on it then."""
    scheduled_share: float = 0.0
    """Of the durable messages: they have a delivery time."""
    ahead_us: int = 0
    """How far ahead these times are, at most."""
    letters_away: bool = False
    """Another node than that of the durable topic keeps its dead letters."""
    lanes: tuple[int, int, int] = (1, 1, 1)
    """Of each node's transport when it starts first."""
    lanes_change: bool = False
    """An engine that starts again has other lanes."""


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One step: its kind (a method of `World`) and its numbers."""

    kind: str
    a: int = 0
    b: int = 0
    c: int = 0


class Script(msgspec.Struct, frozen=True):
    """A world and its steps."""

    settings: Settings
    steps: list[Step]


WEIGHTS = {
    "run": 20,
    "publish": 22,
    "take": 26,
    "live_publish": 12,
    "live_take": 12,
    "crash": 3,
    "freeze": 2,
    "cut": 2,
    "heal": 3,
    "weather": 2,
    "disk_fails": 1,
    "grow": 1,
    "seek": 1,
    "rejoin": 2,
    "reborn": 2,
    "pause": 1,
}
"""How often each kind of step is drawn."""


CLOCK_STEPS_S = (-3600, -60, -2, 1, 30, 3600)
"""Steps of the wall clock: of an operator, and of a time service."""


AHEAD_US = (20_000, 500_000, 5_000_000, 600_000_000)
"""Delivery times: within a step, a few steps, a world, and long after it."""


def draw(seed: int) -> Script:
    """The script of a seed: the same one each time."""
    chance = random.Random(seed)
    settings = Settings(
        seed=seed,
        drop=chance.choice([0.0, 0.0, 0.01, 0.05, 0.2]),
        duplicate=chance.choice([0.0, 0.02, 0.1]),
        reorder=chance.choice([0.0, 0.05, 0.2]),
        delay_us=chance.choice([0.0, 20.0, 500.0]),
        queues=chance.randint(1, 3),
        fsync=chance.choice(["batch", "interval"]),
        flow=chance.choice(["min", "rate"]),
        live_history_bytes=chance.choice([1 << 16, 1 << 20]),
        producers=chance.randint(1, 3),
        subscriptions=chance.randint(1, 2),
        members=chance.randint(1, 3),
        max_in_flight=chance.choice([3, 20, 500]),
        ack_wait_s=chance.choice([0.2, 1.0, 30.0]),
        keys=chance.choice([1, 3, 10]),
        nak_share=chance.choice([0.0, 0.05, 0.3]),
        term_share=chance.choice([0.0, 0.0, 0.02]),
        retention_bytes=chance.choice([0, 0, 0, 1 << 16]),
        power=chance.random() < 0.3,
    )
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    if settings.power:
        kinds, weights = [*kinds, "power_lost"], [*weights, 2]
    chosen = chance.choices(kinds, weights, k=chance.randint(STEPS_MIN, STEPS_MAX))
    steps = [_step(chance, kind) for kind in chosen]
    settings = _with_letters(seed, _with_delivery_times(seed, settings))
    settings = _with_lanes(seed, settings)
    return Script(settings, _with_clock_steps(seed, steps))


def _with_letters(seed: int, settings: Settings) -> Settings:
    """Drawn apart, as the steps of the clock."""
    chance = random.Random(f"letters {seed}")
    if chance.random() < 0.7:
        return settings
    share = chance.choice([0.02, 0.1, 0.3])
    return msgspec.structs.replace(settings, letters_away=True, term_share=share)


def _with_lanes(seed: int, settings: Settings) -> Settings:
    """Drawn apart, as the steps of the clock."""
    chance = random.Random(f"lanes {seed}")
    if chance.random() < 0.5:
        return settings
    a, b, c = (chance.randint(1, LANES_MAX) for _ in NODES)
    return msgspec.structs.replace(settings, lanes=(a, b, c), lanes_change=chance.random() < 0.5)


def _with_delivery_times(seed: int, settings: Settings) -> Settings:
    """Drawn apart, as the steps of the clock."""
    chance = random.Random(f"scheduled {seed}")
    return msgspec.structs.replace(
        settings,
        scheduled_share=chance.choice([0.0, 0.05, 0.3, 0.8]),
        ahead_us=chance.choice(AHEAD_US),
    )


def _with_clock_steps(seed: int, steps: list[Step]) -> list[Step]:
    """Drawn apart, so that the other steps of a seed stay as they were."""
    chance = random.Random(f"clock {seed}")
    found = list(steps)
    for _ in range(chance.choice([0, 0, 1, 3])):
        seconds = chance.choice(CLOCK_STEPS_S)
        found.insert(chance.randint(0, len(found)), Step("clock", seconds))
    return found


def _step(chance: random.Random, kind: str) -> Step:
    most = {
        "run": (RUN_US_MAX, 0, 0),
        "publish": (8, 40, 600),
        "take": (8, 60, 6),
        "live_publish": (8, 40, 0),
        "live_take": (8, 0, 0),
        "crash": (2, 1_500_000, 0),
        "freeze": (2, 4_000_000, 0),
        "cut": (2, 2, 0),
        "weather": (4, 4, 0),
        "disk_fails": (3, 300_000, 0),
        "grow": (2, 0, 0),
        "seek": (3, 100, 0),
        "rejoin": (8, 1, 0),
        "reborn": (8, 2, 0),
        "pause": (3, 200_000, 0),
        "power_lost": (300_000, 0, 0),
    }.get(kind, (0, 0, 0))
    return Step(kind, *(chance.randint(0, each) for each in most))


def dump(script: Script) -> str:
    """A script as JSON, for a test that keeps it."""
    return msgspec.json.encode(script).decode()


def load(text: str | bytes) -> Script:
    """A script from JSON."""
    return msgspec.json.decode(text, type=Script)


def as_test(script: Script, name: str, problem: str) -> str:
    """A test function that runs a script, to be pasted into a file of tests."""
    rows = ",\n        ".join(repr(tuple(msgspec.structs.astuple(step))) for step in script.steps)
    settings: dict[str, Any] = msgspec.structs.asdict(script.settings)
    given = ", ".join(f"{field}={value!r}" for field, value in settings.items())
    return (
        f"def test_{name}() -> None:\n"
        f'    """{problem}"""\n'
        f"    settings = Settings({given})\n"
        f"    steps = [Step(*row) for row in (\n        {rows},\n    )]\n"
        "    assert run(Script(settings, steps)) == []\n"
    )
