"""`tidecast bench pausing`, `slow-consumer` and `consume`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from tidecast.bench.commands import cli
from tidecast.cli.common import console, json_option


def _run(
    as_json: bool, name: str, bench: Callable[[Callable[[str], None]], dict[str, Any]]
) -> None:
    from tidecast.agents.warmup import warm_up

    screen = console(stderr=True)
    with screen.status(f"bench {name}") as status:
        warm_up(lambda what, done, total: status.update(f"compiling {what} {done}/{total}"))
        found = bench(lambda text: status.update(f"bench {name}: {text}"))
    click.echo(json.dumps(found, indent=None if as_json else 2))


@cli.command("pausing")
@json_option
@click.option("--seconds", type=float, default=1.0, show_default=True, help="A case of BM1.")
@click.option("--bm2-records", type=int, default=20_000, show_default=True, help="Of 5,000 bytes.")
def pausing(as_json: bool, seconds: float, bm2_records: int) -> None:
    """Queues paused at random while consumed: what pausing and holding back costs."""
    from tidecast.bench.pulling import pausing as bench

    _run(as_json, "pausing", lambda note: bench(note, seconds=seconds, bm2_records=bm2_records))


@cli.command("slow-consumer")
@json_option
@click.option("--records", type=int, default=50_000, show_default=True, help="In the queue.")
@click.option("--healthy", type=int, default=30, show_default=True, help="Healthy consumers.")
def slow_consumer(as_json: bool, records: int, healthy: int) -> None:
    """One stuck consumer beside healthy ones: they keep their rate, it misses nothing."""
    from tidecast.bench.pulling import slow_consumer as bench

    _run(as_json, "slow-consumer", lambda note: bench(note, records=records, healthy=healthy))


@cli.command("consume")
@json_option
@click.option("--records", type=int, default=200_000, show_default=True, help="Of 100 bytes.")
@click.option("--streams", type=int, default=10_000, show_default=True, help="Keys, in one case.")
def consume(as_json: bool, records: int, streams: int) -> None:
    """Consume and ack a prefilled durable topic: compiled, in Python batches, with many keys."""
    from tidecast.bench.consuming import consume as bench

    _run(as_json, "consume", lambda note: bench(note, records=records, streams=streams))
