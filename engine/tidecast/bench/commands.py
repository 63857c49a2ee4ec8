"""`tidecast bench NAME [--json] [--shape embedded|engine] [--peers] ...`."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidecast.bench.measure import Result
from tidecast.cli.common import console, data_dir_option

if TYPE_CHECKING:
    from rich.table import Table

HELP = {
    "floor": "Raw sockets, no protocol: what this machine can do at all.",
    "throughput": "70-byte messages over loopback multicast, two processes, compiled.",
    "python": "What a Python user sees: one by one and in batches.",
    "latency": "Ping-pong, embedded inline, beside raw sockets.",
    "ipc": "Shared memory: throughput and ping-pong.",
    "request": "Requests and replies over shared memory, from plain Python.",
    "fanout": "The sender's cost with 1 to 16 subscribers.",
    "loss": "Throughput and ping-pong under injected loss.",
    "idle": "CPU and memory of an engine with nothing to do.",
    "durable": "Publishing to a durable topic, acked, beside a plain sequential write.",
    "gateway": "Publishing and consuming over a websocket, beside a bare websocket.",
    "recovery": "A large queue after kill -9: how soon it serves.",
    "consume": "Consuming and acking a durable topic: compiled, in batches, one by one; many keys.",
    "pausing": "Queues paused at random while consumed: what pausing and holding back costs.",
    "slow-consumer": "One stuck consumer beside healthy ones: they keep their rate.",
    "start": "A first start of an engine, which compiles its kernels, and later ones.",
    "seal": "The cipher of sealed packets (AES-GCM of libcrypto), beside a copy of the packet.",
    "kafka": "The Kafka endpoint: Produce, Fetch, round trips; with --servers beside Kafka.",
    "kafka-storage": "Topics on a Kafka cluster beside confluent-kafka; needs --servers.",
    "jetstream": "Streams of NATS beside nats-py; needs --servers.",
    "tables": "Keys and headers that repeat, in full and by tables: bytes and messages.",
    "streams": "One key's messages in a queue of very many keys, each with a subscription.",
}
OURS = {"durable": "publish_batched_msgs_per_s", "consume": "batches_msgs_per_s"}
PEER_BENCHES = (
    "throughput",
    "python",
    "latency",
    "ipc",
    "fanout",
    "loss",
    "durable",
    "consume",
    "request",
)
PEER_TURNS = {"ipc": 3, "latency": 3, "request": 3}
"""More often where ours and theirs are near each other: a machine's speed changes by seconds."""
_FIGURES = ("msgs_per_s", "rtt_p50_us")


@click.group()
def cli() -> None:
    """Measure this machine: Tidecast, its floor, its peers. Needs both cores quiet."""


def _run_peers(name: str, note: Callable[[str], None]) -> dict[str, Any]:
    """Every installed peer's usual configurations of a bench. Empty outside a source checkout."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "benchmarks" / "peers" / "__init__.py").exists():
        note("peers: benchmarks/peers is part of the source checkout, not of the package")
        return {}
    sys.path.insert(0, str(root))
    peers = importlib.import_module("benchmarks.peers")
    cases = [(peer, case) for peer in peers.available() for case in peers.cases(peer, name)]
    turns: list[list[dict[str, Any]]] = [[] for _ in cases]
    for _ in range(PEER_TURNS.get(name, 1)):
        for (peer, case), outcomes in zip(cases, turns, strict=True):
            note(f"peer {peer} {case}")
            try:
                outcome = peers.run(peer, name, **case)
            except peers.PeerError as problem:
                outcome = {"error": str(problem), "config": case}
            outcomes.append({k: outcome[k] for k in ("config", "metrics", "error") if k in outcome})
    found: dict[str, Any] = {}
    for (peer, _), outcomes in zip(cases, turns, strict=True):
        found.setdefault(peer, []).append(_median_turn(outcomes))
    return found


def _median_turn(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """The turn in the middle by the case's figure, with the figure of each turn in its config."""
    done = [each for each in outcomes if each.get("metrics")]
    if len(done) < 2:
        return (done or outcomes)[0]
    figure = next((name for name in _FIGURES if name in done[0]["metrics"]), None)
    if figure is None:
        return done[0]
    by_turn = [each["metrics"][figure] for each in done]
    middle = by_turn.index(sorted(by_turn)[len(by_turn) // 2])
    done[middle]["config"][f"{figure}_by_turn"] = by_turn
    return done[middle]


def _beside_peers(result: Result) -> None:
    """``ratio.PEER``: our figure from Python, by the peer's best one of the same run."""
    ours = result.metrics.get(OURS.get(result.bench, ""))
    for peer, cases in result.peers.items():
        best = max((case.get("metrics", {}).get("msgs_per_s", 0) for case in cases), default=0)
        if ours and best:
            result.ratio[peer] = round(ours / best, 2)


def _show(outcome: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("figure", "tidecast", "floor", "ratio", title=f"bench {outcome['bench']}")
    for name, value in outcome["metrics"].items():
        short = name.removeprefix("rtt_").removesuffix("_us")
        ratio = outcome["ratio"].get(name, outcome["ratio"].get(short, ""))
        table.add_row(name, f"{value:,}", f"{outcome['floor'].get(name, '')}", f"{ratio}")
    console().print(table)
    if shown := _peers_table(outcome["peers"]):
        console().print(shown)


def _peers_table(peers: dict[str, Any]) -> Table | None:
    """The figures of peers in the same run, and ours by theirs where the bench compares them."""
    from rich.table import Table

    ratios = peers.get("ratio", {})
    table = Table("peer", "configuration", "figure", "value", "ours / theirs", title="peers")
    for peer, cases in peers.items():
        for case in [] if peer == "ratio" else cases:
            config = " ".join(f"{k}={v}" for k, v in case["config"].items())
            figures = case.get("metrics") or {"error": case.get("error", "no figures")}
            for name, value in figures.items():
                shown = f"{value:,}" if isinstance(value, int | float) else str(value)
                table.add_row(peer, config, name, shown, f"{ratios.get(name, '')}")
    return table if table.row_count else None


def _measure(name: str, as_json: bool, with_peers: bool, options: dict[str, Any]) -> dict[str, Any]:
    from tidecast.agents.warmup import warm_up
    from tidecast.bench.benches import BENCHES

    screen = console(stderr=True)
    with screen.status(f"bench {name}") as status:

        def note(text: str) -> None:
            status.update(f"bench {name}: {text}")

        if name not in ("start", "seal"):  # one measures it, the other needs no engine
            warm_up(lambda what, done, total: note(f"compiling {what} {done}/{total}"))
        result = BENCHES[name](note, **options)
        if with_peers and name in PEER_BENCHES:
            result.peers = _run_peers(name, note)
            _beside_peers(result)
    outcome = result.as_dict()
    if as_json:
        click.echo(json.dumps(outcome))
    else:
        _show(outcome)
    return outcome


class _Bench(click.Command):
    """A bench; its help shows the options that it takes."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Command`."""
        from tidecast.bench.benches import BENCHES

        taken = {*(BENCHES[str(self.name)].__kwdefaults__ or {}), *_ALWAYS}
        for parameter in self.params:
            if isinstance(parameter, click.Option):
                parameter.hidden = parameter.name not in taken
        super().format_options(ctx, formatter)


_ALWAYS = ("as_json", "peers", "data_dir")


def _add(name: str) -> None:
    @cli.command(name, cls=_Bench, help=HELP[name])
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object, last, on a line.")
    @click.option(
        "--shape",
        type=click.Choice(["embedded", "engine"]),
        default="embedded",
        show_default=True,
        help="Agents in the client's process, or engine processes.",
    )
    @click.option("--peers", is_flag=True, help="Also run the installed peers, in the same run.")
    @click.option("--messages", type=click.IntRange(1000), help="Messages to send.")
    @click.option("--packet-bytes", type=click.IntRange(576, 65_000), help="Datagram size.")
    @click.option("--rounds", type=click.IntRange(100), help="Round trips.")
    @click.option("--queues", type=click.IntRange(1, 1024), help="Queues.")
    @click.option("--fsync", type=click.Choice(["none", "interval", "batch"]), help="When to sync.")
    @click.option("--gigabytes", type=click.FloatRange(0.01, 1000), help="Queue size.")
    @click.option("--records", type=click.IntRange(1000), help="In the queue.")
    @click.option("--streams", type=click.IntRange(1, 16_000), help="Keys.")
    @click.option("--healthy", type=click.IntRange(1, 500), help="Consumers beside the stuck one.")
    @click.option("--seconds", type=click.FloatRange(0.1, 600), help="Of each case.")
    @click.option("--bm2-records", type=click.IntRange(1000), help="Of 5,000 bytes.")
    @click.option(
        "--servers", metavar="HOST:PORT", help="A Kafka broker; for jetstream a NATS server."
    )
    @click.option("--secure", is_flag=True, default=None, help="Sealed packets, beside plain ones.")
    @click.option("--lanes", type=click.IntRange(1, 8), help="Lanes, beside one; --shape engine.")
    @click.option("--within-s", type=click.FloatRange(1, 3600), help="For all turns; 300.")
    @click.option("--drop", type=click.FloatRange(0, 0.9), help="Share of packets lost.")
    @data_dir_option
    def command(as_json: bool, shape: str, peers: bool, data_dir: Path, **given: Any) -> None:
        del data_dir  # benches make directories of their own
        from tidecast.bench.benches import BENCHES, check_shape

        check_shape(name, shape)
        accepted = BENCHES[name].__kwdefaults__ or {}
        options = {k: v for k, v in given.items() if v is not None}
        for option in options:
            if option not in accepted:
                raise click.UsageError(f"bench {name} takes no --{option.replace('_', '-')}")
        if "shape" in accepted:
            options["shape"] = shape
        _measure(name, as_json, peers, options)

    del command


for _name in HELP:
    _add(_name)


@cli.command("all", help="Every bench that needs no broker, in turn; one JSON object each.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@click.option("--peers", is_flag=True, help="Also run the installed peers.")
@data_dir_option
def run_all(as_json: bool, peers: bool, data_dir: Path) -> None:
    """Run them all."""
    del data_dir
    for name in HELP:
        if name not in ("kafka-storage", "jetstream"):  # they are nothing without a server
            _measure(name, as_json, peers, {})
    _measure("throughput", as_json, False, {"shape": "engine"})


SPARK_PARTS = ("source", "tuples", "stream", "gateway", "sink", "rollup", "decode")


@cli.command("spark", help="PySpark: source, sink, rollup, first row. Needs the extra `spark`.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, last, on a line.")
@click.option(
    "--rows",
    type=click.IntRange(10_000),
    default=6_000_000,
    show_default=True,
    help="Rows of each measurement.",
)
@click.option(
    "--rollup-rows",
    type=click.IntRange(0),
    default=10_000_000,
    show_default=True,
    help="Rows of telemetry to roll up.",
)
@click.option(
    "--kafka",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Compare with Kafka: its jars in DIR/broker, those of Spark's connector in DIR/spark.",
)
@click.option(
    "--only", multiple=True, help="Measure these parts only.", type=click.Choice(SPARK_PARTS)
)
@data_dir_option
def run_spark(
    as_json: bool,
    rows: int,
    rollup_rows: int,
    kafka: Path | None,
    only: tuple[str, ...],
    data_dir: Path,
) -> None:
    """Measure the Spark pipeline."""
    del data_dir
    from tidecast.cli.pipelines.run import load_spark

    screen = console(stderr=True)
    with screen.status("bench spark") as status:
        outcome = load_spark("bench", "run")(
            rows, rollup_rows, kafka, only, lambda text: status.update(f"spark: {text}")
        )
    if as_json:
        click.echo(json.dumps(outcome))
    else:
        _show(outcome)
