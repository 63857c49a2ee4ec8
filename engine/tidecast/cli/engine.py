"""`tidecast up`, `down`, `engine`: the engine process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidecast.cli.common import (
    F,
    command_name,
    console,
    data_dir_option,
    dir_hint,
    json_option,
    token_option,
)
from tidecast.cli.options.endpoints import gateway_options, kafka_options
from tidecast.cli.options.params import Duration
from tidecast.cli.processes.launch import LOG_NAME, answers, start_engine

if TYPE_CHECKING:
    from tidecast.cli.control import Linked, Service
    from tidecast.config.store import TopologyStore
    from tidecast.config.topology import Topology
    from tidecast.engine.process import Companion, EngineState
    from tidecast.gateway.settings import GatewaySettings
    from tidecast.kafka.server import KafkaEndpoint

DETACHED_START_TIMEOUT_S = 300.0
LOG_LINES_SHOWN = 20

_topology_option = click.option(
    "--topology",
    "topology_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Topology file [default: topology.yaml in the data directory].",
)


def _warm_up(topology: Topology) -> None:
    """Compile kernels for the topology, with a progress bar on a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from tidecast.agents.warmup import needed, warm_up

    out = console(stderr=True)
    columns = (
        TextColumn("Compiling kernels (first start only)"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
    )
    began_s, announced = time.monotonic(), False
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def step(name: str, done: int, total: int) -> None:
            nonlocal announced
            bar.update(task, description=name, completed=done, total=total)
            if not announced and not out.is_terminal and time.monotonic() - began_s > 3:
                announced = True
                click.echo("compiling kernels, first start only ...", err=True)

        warm_up(step, needed(topology))


def _run(
    data_dir: Path,
    topology_file: Path | None,
    token: str | None,
    gateway: GatewaySettings,
    *,
    linked: Linked | None = None,
    telemetry_s: float = 0.0,
    adapters: tuple[str, ...] = (),
    kafka: dict[str, Any] | None = None,
) -> None:
    from tidecast.agents.warmup import Background
    from tidecast.engine.adapters import Adapters
    from tidecast.engine.process import make_node, no_fetch, run_engine
    from tidecast.telemetry.sampling import telemetry

    endpoints: list[KafkaEndpoint] = []

    def serve_kafka(node: Any, store: TopologyStore) -> Companion | None:
        from tidecast.config.kafka import with_options

        config = with_options(store.topology.kafka, kafka or {})
        if not config.is_on:
            return None
        from tidecast.kafka.server import make_kafka
        from tidecast.node.administration import Administration

        administration = Administration(node, store)
        endpoints.append(make_kafka(node, administration, config, keys_come=linked is not None))
        return endpoints[0]

    def on_ready(state: EngineState, seconds: float) -> None:
        click.echo(
            f"ready in {seconds:.2f} s: node {state.node_name} (id {state.node_id}), "
            f"pid {state.pid}, data in {data_dir}"
            + (f", gateway {state.gateway}" if state.gateway else "")
            + "".join(f", kafka {each.address}" for each in endpoints)
            + "".join(f", {each}" for each in _networks(data_dir, topology_file))
        )
        sys.stdout.flush()
        _warn(data_dir, topology_file)

    links = () if linked is None else (linked.companion,)
    try:
        run_engine(
            data_dir,
            topology_file,
            token=token,
            gateway=gateway,
            on_ready=on_ready,
            warm_up=_warm_up,
            keys_come=linked is not None,
            companions=(
                partial(Adapters, adapters),
                *links,
                telemetry(telemetry_s),
                serve_kafka,
                lambda *_: Background(),
            ),
            node_factory=partial(make_node, lease_store=linked and linked.leases),
            fetch=no_fetch if linked is None else linked.fetch,
        )
    except KeyboardInterrupt:
        click.echo("stopped before it was ready", err=True)
        sys.exit(130)
    click.echo("stopped")


def _networks(data_dir: Path, topology_file: Path | None) -> list[str]:
    """Where the transports of an engine listen."""
    from tidecast.config.topology import load_topology, topology_path
    from tidecast.errors import TidecastError

    with contextlib.suppress(TidecastError):
        topology = load_topology(topology_file or topology_path(data_dir))
        return [f"{each.name} {each.where}" for each in topology.transports if each.is_network]
    return []


def _warn(data_dir: Path, topology_file: Path | None) -> None:
    """Report why packets cannot leave, with the fix."""
    from tidecast.config.topology import load_topology, topology_path
    from tidecast.doctor import Place, network_findings
    from tidecast.errors import TidecastError

    with contextlib.suppress(TidecastError):
        topology = load_topology(topology_file or topology_path(data_dir))
        for each in network_findings(Place(data_dir=data_dir, topology=topology)):
            click.echo(f"warning: {each.check}: {each.detail}; fix: {each.mend}", err=True)


_control_options = (
    click.option(
        "--control",
        "control_url",
        envvar="TIDECAST_CONTROL_URL",
        metavar="URL",
        help="Control service to be managed by [env: TIDECAST_CONTROL_URL].",
    ),
    click.option(
        "--enrol",
        "enrol_token",
        envvar="TIDECAST_ENROL_TOKEN",
        metavar="TOKEN",
        help="Enrolment token for the first time [env: TIDECAST_ENROL_TOKEN].",
    ),
    click.option(
        "--control-ca",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        help="CA certificate of the control service, if the system does not trust it.",
    ),
    click.option(
        "--insecure-control",
        is_flag=True,
        envvar="TIDECAST_INSECURE_CONTROL",
        help="Reach it on another host in clear text, token and credential included: in a "
        "network that is trusted [env: TIDECAST_INSECURE_CONTROL].",
    ),
)


@click.command()
@data_dir_option
@_topology_option
@token_option
@gateway_options("auto")
@click.option("--detach", is_flag=True, help="Start in the background and return when ready.")
@click.option("--no-control", is_flag=True, help="An engine alone, without the control service.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=None,
    metavar="PORT",
    envvar="TIDECAST_CONTROL_PORT",
    help="Port of the control service on loopback. [default: 7480, or the next that is free]",
)
def up(
    data_dir: Path,
    topology_file: Path | None,
    token: str | None,
    gateway: GatewaySettings,
    detach: bool,
    no_control: bool,
    port: int | None,
) -> None:
    """Start Tidecast on this machine: Postgres, the control service with its page, an engine.

    In the foreground until Ctrl-C, or in the background with --detach. A part that ends later
    is started again. When all of it runs already, it reports this and returns; when a half of it
    is missing, it starts that half.
    """
    from tidecast.cli import Failure
    from tidecast.cli.control import service_state
    from tidecast.cli.processes.watch import keep_up, watching_pid
    from tidecast.engine.process import read_state, running_pid

    code, began_s = 0, time.monotonic()
    pid, served = running_pid(data_dir), service_state(data_dir)
    if pid is not None:
        state = read_state(data_dir)
        name = f", node {state.node_name}" if state is not None else ""
        click.echo(f"already up: engine pid {pid}{name}, data in {data_dir}")
        if served is None and not no_control and _is_linked(data_dir):
            watched = watching_pid(data_dir) is not None
            served = _start_missing_service(data_dir, watched=watched)
        if served is not None:
            click.echo(f"control service: {served['url']}")
        if detach:
            _watch(data_dir, topology_file, token, gateway, served["url"] if served else None)
        return
    if not detach and (watcher := watching_pid(data_dir)) is not None:
        raise Failure(
            f"process {watcher} keeps Tidecast running on {data_dir}, and starts its engine again: "
            f"wait for that, or end it: {command_name()} down{dir_hint(data_dir)}"
        )
    service, url = None, None
    if not no_control and served is not None:
        url = served["url"]
        click.echo(f"control service: {url} (it ran already, and is stopped by `down` alone)")
    elif not no_control:
        service = _start_service(data_dir, port, topology_file)
        url = service.url
        click.echo("\n".join(service.lines))
    try:
        if detach:
            _detach(data_dir, topology_file, token, gateway, url, began_s)
            service = None
        else:
            code = keep_up(data_dir, topology_file, token, gateway, url, service)
    finally:
        if service is not None:
            service.stop()
    sys.exit(code)


def _port_of(url: str) -> int:
    from urllib.parse import urlsplit

    return urlsplit(url).port or 0


def _start_service(data_dir: Path, port: int | None, topology_file: Path | None) -> Service:
    from tidecast.cli import Failure
    from tidecast.cli.control import PORTS_TRIED_MAX, free_port, start_service

    options = [] if topology_file is None else ["--topology", str(topology_file.absolute())]
    chosen = free_port() if port is None else port
    with console(stderr=True).status("starting Postgres and the control service"):
        for _ in range(PORTS_TRIED_MAX):
            try:
                return start_service(data_dir, *options, "--port", str(chosen))
            except Failure:
                if port is not None or free_port(chosen) == chosen:
                    raise  # it is not the port: another platform that starts now would have it
                chosen = free_port(chosen + 1)
        return start_service(data_dir, *options, "--port", "0")


def _is_linked(data_dir: Path) -> bool:
    """The engine that runs knows a control service on this machine."""
    return _linked_url(data_dir) != ""


def _linked_url(data_dir: Path) -> str:
    """The URL of the service that an engine knows; "" when it knows none here."""
    from urllib.parse import urlsplit

    from tidecast.control_link.link import load_state

    url = load_state(data_dir).url
    return url if urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1") else ""


def _start_missing_service(data_dir: Path, *, watched: bool) -> dict[str, Any] | None:
    """Start the service where the engine looks for it; or wait until its watcher does."""
    from tidecast.cli import Failure
    from tidecast.cli.control import service_state

    if not watched:
        service = _start_service(data_dir, _port_of(_linked_url(data_dir)), None)
        click.echo("the control service was missing: it is started again")
        return {"url": service.url}
    pause, ends_s = threading.Event(), time.monotonic() + DETACHED_START_TIMEOUT_S
    with console(stderr=True).status("waiting for the control service, which is started again"):
        while time.monotonic() < ends_s:
            found = service_state(data_dir)
            if found is not None:
                return found
            pause.wait(0.1)
    raise Failure(f"the control service does not start; see {data_dir}/control-service.log")


def _link(
    url: str, enrol_token: str | None, ca_file: Path | None, *, insecure: bool = False
) -> Linked:
    from tidecast.cli.control import link_to

    return link_to(url, enrol_token, ca_file, insecure=insecure)


def _with_control_options(command: F) -> F:
    for option in reversed(_control_options):
        command = option(command)
    return command


@click.command()
@data_dir_option
@_topology_option
@token_option
@gateway_options("off")
@_with_control_options
@click.option(
    "--telemetry",
    "telemetry_s",
    type=Duration(low=0, high=3600),
    default=0.0,
    help="Keep a history of its counters: the time between two samples; "
    "`telemetry` in the topology goes before it. [default: 0, none]",
)
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="TOPIC=PLACE",
    help="A topic whose queues are elsewhere: MODULE:FUNCTION makes an adapter, "
    "kafka://HOST:PORT/NAME is a topic of a Kafka cluster, jetstream://HOST:PORT/STREAM "
    "a stream of NATS; may be repeated. See docs/ADAPTERS.md, docs/KAFKA_TOPICS.md and "
    "docs/JETSTREAM.md.",
)
@kafka_options
def engine(
    data_dir: Path,
    topology_file: Path | None,
    token: str | None,
    gateway: GatewaySettings,
    control_url: str | None,
    enrol_token: str | None,
    control_ca: Path | None,
    insecure_control: bool,
    telemetry_s: float,
    adapters: tuple[str, ...],
    kafka: dict[str, Any],
) -> None:
    """Run an engine in the foreground until SIGTERM or Ctrl-C (for service managers).

    With --control it is managed by that service, and runs on when the service is away. Leases of
    topics with owner "*" are the service's then (unless `leases.store` in the topology names
    another store).
    """
    link = None
    if control_url is not None:
        link = _link(control_url, enrol_token, control_ca, insecure=insecure_control)
    _run(
        data_dir,
        topology_file,
        token,
        gateway,
        linked=link,
        telemetry_s=telemetry_s,
        adapters=adapters,
        kafka=kafka,
    )


@click.command()
@data_dir_option
@json_option
def down(data_dir: Path, as_json: bool) -> None:
    """Stop all that `up` started here; clients are notified. Nothing to stop is no error."""
    from tidecast.api.node import LeftBehind
    from tidecast.cli import Failure
    from tidecast.cli.common import echo_json
    from tidecast.cli.control import service_state, stop_service
    from tidecast.cli.processes.watch import stop_watching
    from tidecast.engine.process import read_left_behind, running_pid, stop_engine

    stopped, served = running_pid(data_dir), service_state(data_dir)
    stop_watching(data_dir)  # `up` in the foreground ends its processes by itself
    if running_pid(data_dir) is not None:
        stopped = stop_engine(data_dir)
    left = LeftBehind() if stopped is None else read_left_behind(data_dir)
    runs_on: Failure | None = None
    try:
        service = stop_service(data_dir) or (served and served["pid"])
    except Failure as problem:  # behind the report on the engine
        service, runs_on = None, problem
    if as_json:
        echo_json(
            {
                "stopped_pid": stopped,
                "stopped_control_pid": service,
                "waiting_messages": left.waiting_messages,
                "lost_messages": left.lost_messages,
            }
        )
        if runs_on is not None:
            raise runs_on
        return
    if stopped is not None:
        click.echo(f"stopped engine pid {stopped}")
    if left.waiting_messages:
        click.echo(
            f"{left.waiting_messages} live messages of {left.publications} publishers are not "
            "sent: they wait for the next engine"
        )
    if left.lost_messages:
        click.echo(f"{left.lost_messages} live messages of clients that are gone were not sent")
    if service is not None:
        click.echo(f"stopped control service pid {service}")
    if runs_on is not None:
        raise runs_on
    if stopped is None and service is None:
        click.echo("nothing was up")


def _watch(
    data_dir: Path,
    topology_file: Path | None,
    token: str | None,
    gateway: GatewaySettings,
    control_url: str | None,
) -> None:
    from tidecast.cli.processes.watch import watch_detached

    options = gateway.words
    if topology_file is not None:
        options += ["--topology", str(topology_file.absolute())]
    if control_url is not None:
        options += ["--port", str(_port_of(control_url))]
    environment = dict(os.environ) | ({} if token is None else {"TIDECAST_TOKEN": token})
    watch_detached(data_dir, options, environment)


def _detach(
    data_dir: Path,
    topology_file: Path | None,
    token: str | None,
    gateway: GatewaySettings,
    control_url: str | None,
    began_s: float,
) -> None:
    from tidecast.cli import Failure

    log = data_dir / LOG_NAME
    process = start_engine(data_dir, topology_file, token, gateway, control_url, log=log)
    engine_began_s = time.monotonic()
    out = console(stderr=True)
    with out.status("starting the engine (the first start compiles its kernels)"):
        while not answers(data_dir, token):
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                if time.monotonic() - engine_began_s < DETACHED_START_TIMEOUT_S:
                    continue
                process.terminate()
            said = log.read_text("utf-8", "replace").strip().splitlines()[-LOG_LINES_SHOWN:]
            text = "\n".join(said).removeprefix("error: ")
            raise Failure(text or f"the engine did not start; see {log}")
    _watch(data_dir, topology_file, token, gateway, control_url)
    click.echo(
        f"up in {time.monotonic() - began_s:.2f} s: engine pid {process.pid}, data in {data_dir}, "
        + "".join(f"{each}, " for each in _networks(data_dir, topology_file))
        + f"log {log}; stop it with: {command_name()} down{dir_hint(data_dir)}"
    )
