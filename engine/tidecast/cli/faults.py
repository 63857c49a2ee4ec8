"""`tidecast faults`: fault injection under the real receive path of the running engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidecast.cli.common import (
    console,
    control,
    data_dir_option,
    echo_json,
    json_option,
    token_option,
)
from tidecast.cli.options.names import TransportName
from tidecast.cli.options.params import Duration

if TYPE_CHECKING:
    from tidecast.client.links.socket_session import EngineControl
    from tidecast.config.topology import FaultSettings

F = TypeVar("F", bound=Callable[..., Any])

_transport_option = click.option(
    "--transport",
    type=TransportName(),
    metavar="NAME",
    help="Only this one [default: all that allow faults].",
)


@click.group()
def faults() -> None:
    """Inject faults into packets that this engine receives, to test how the platform copes.

    A transport must allow it: allow_faults in the topology.
    """


def _probability(flag: str, text: str) -> Callable[[F], F]:
    return click.option(flag, type=click.FloatRange(0, 1), default=0.0, metavar="0..1", help=text)


@faults.command("set")
@_transport_option
@_probability("--drop", "Probability that a packet is lost.")
@_probability("--duplicate", "Probability that a packet comes twice.")
@_probability("--reorder", "Probability that a packet is overtaken by others.")
@_probability("--corrupt", "Probability that a packet's bytes are spoiled.")
@click.option(
    "--delay",
    type=Duration("us", bare=False, low=0),
    default=0,
    metavar="DURATION",
    help="Every packet: 2ms.",
)
@click.option("--partition", default="", metavar="A,B", help="Cut off from these nodes (name, id).")
@click.option(
    "--seed", type=click.IntRange(0, (1 << 62) - 1), default=0, help="Same seed, same faults."
)
@data_dir_option
@token_option
@json_option
def set_faults(
    transport: str | None,
    drop: float,
    duplicate: float,
    reorder: float,
    corrupt: float,
    delay: float,
    partition: str,
    seed: int,
    data_dir: Path,
    token: str | None,
    as_json: bool,
) -> None:
    """Replace the faults of a transport; faults that are not given are switched off."""
    from tidecast.config.check import raise_problems
    from tidecast.config.topology import FaultSettings

    with control(data_dir, token) as engine:
        settings = FaultSettings(
            drop=drop,
            duplicate=duplicate,
            reorder=reorder,
            corrupt=corrupt,
            delay_us=float(delay),
            seed=seed,
            partition=tuple(filter(None, (name.strip() for name in partition.split(",")))),
        )
        raise_problems(settings.problems())
        _apply(engine, transport, settings)
        _report(engine, as_json)


@faults.command("clear")
@_transport_option
@data_dir_option
@token_option
@json_option
def clear(transport: str | None, data_dir: Path, token: str | None, as_json: bool) -> None:
    """Switch all faults off."""
    from tidecast.config.topology import FaultSettings

    with control(data_dir, token) as engine:
        _apply(engine, transport, FaultSettings())
        _report(engine, as_json)


@faults.command("show")
@data_dir_option
@token_option
@json_option
def show(data_dir: Path, token: str | None, as_json: bool) -> None:
    """Show the faults that are injected now."""
    with control(data_dir, token) as engine:
        _report(engine, as_json)


def _apply(engine: EngineControl, transport: str | None, settings: FaultSettings) -> None:
    from tidecast.errors import ConfigError

    if transport is not None:
        engine.set_faults(transport, settings)
        return
    refused: list[ConfigError] = []
    known = engine.faults()
    for name in known:
        try:
            engine.set_faults(name, settings)
        except ConfigError as problem:
            refused.append(problem)
    if refused and len(refused) == len(known):
        raise refused[0]
    if not known:
        raise ConfigError("no transport allows faults: set allow_faults in the topology")


def _report(engine: EngineControl, as_json: bool) -> None:
    import msgspec

    now = engine.faults()
    if as_json:
        fields = {
            name: {field: getattr(each, field) for field in each.__struct_fields__}
            for name, each in now.items()
        }
        echo_json(msgspec.to_builtins(fields))
        return
    out = console()
    for name, each in now.items():
        active = msgspec.to_builtins(each) if each.any else {}
        active |= {"partition": ",".join(each.partition)} if each.partition else {}
        text = " ".join(f"{k}={v}" for k, v in active.items() if v not in (0, 0.0, ()))
        if each.any:
            text += f" seed={each.seed}" if "seed" not in active else ""
        out.print(f"{name}: {text or 'none'}", markup=False)
