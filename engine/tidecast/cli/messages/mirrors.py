"""`tidecast mirror list`, `create` and so on: mirrors that the control service keeps running."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from tidecast.cli.api import control_option, send
from tidecast.cli.common import F, data_dir_option, echo_json, human_count, json_option

PAGE = 500


def _common(command: F) -> F:
    return json_option(data_dir_option(control_option(command)))


def _dry_run(command: F) -> F:
    return click.option("--dry-run", is_flag=True, help="Show the change; change nothing.")(command)


def _path(name: str, action: str = "", *, dry_run: bool = False) -> str:
    return f"/mirrors/{quote(name, safe='')}{action}{'?dry_run=true' if dry_run else ''}"


@click.command("list")
@_common
def list_mirrors(url: str | None, data_dir: Path, as_json: bool) -> None:
    """List the mirrors of the control service, with position, lag and rate."""
    rows: list[Any] = []
    cursor = ""
    while True:
        page = json.loads(send("GET", f"/mirrors?limit={PAGE}{cursor}", url, data_dir))
        rows += page["items"]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    if as_json:
        echo_json(rows)
        return
    from tidecast.cli.topics.subscription import table

    columns = ("mirror", "from", "to", "state", "position", "lag", "records/s", "error")
    table(columns, [_row(each) for each in rows])


def _row(mirror: dict[str, Any]) -> tuple[Any, ...]:
    spec, status = mirror["spec"], mirror["status"]
    is_stream = spec["direction"] == "from_jetstream"
    there = f"jetstream:{spec['streams']}" if is_stream else f"kafka:{spec['kafka_topic']}"
    ends = (there, spec["topic"])
    first, last = ends[::-1] if spec["direction"] == "to_kafka" else ends
    rate = human_count(status["rate"])
    return (
        mirror["metadata"]["name"],
        first,
        last,
        status["state"],
        status["position"],
        status["lag"],
        rate,
        status["error"],
    )


@click.command()
@click.argument("name")
@_common
def show(name: str, url: str | None, data_dir: Path, as_json: bool) -> None:
    """Show a mirror: its queues, counts and last events."""
    found = json.loads(send("GET", _path(name), url, data_dir))
    if as_json:
        echo_json(found)
        return
    status = found["status"]
    click.echo(
        f"{name}: {status['state']}, {status['records']} records, "
        f"{human_count(status['rate'])} records/s, lag {status['lag']}, "
        f"{status['repeated']} there already, {status['gone']} offsets gone, "
        f"{status['left_out']} records left out, "
        f"{status['failures']} failures"
    )
    if status["error"]:
        click.echo(f"error: {status['error']}")
    for queue in status["queues"]:
        click.echo(
            f"  queue {queue['source']}: copied to offset {queue['position']}, durable to "
            f"{queue['durable']}, end {queue['end']}"
        )
    for event in status["events"]:
        click.echo(f"  {event['at']} {event['event']}: {event['text']}")


@click.command()
@click.argument("name")
@click.option(
    "--from",
    "source",
    required=True,
    metavar="SOURCE",
    help="kafka://HOST:PORT/TOPIC, jetstream://HOST:PORT/STREAM, or a topic.",
)
@click.option(
    "--to", "target", required=True, metavar="TARGET", help="A durable topic, or kafka://..."
)
@click.option(
    "--rate", type=click.IntRange(0, 100_000_000), default=0, help="Records a second; 0: no limit."
)
@click.option(
    "--start",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    help="Where a new mirror begins.",
    show_default=True,
)
@click.option(
    "--place",
    type=click.Choice(["auto", "queue", "key"]),
    default="auto",
    help="auto: queue to queue when the counts agree, else by key.",
    show_default=True,
)
@click.option(
    "--on-gap",
    type=click.Choice(["report", "stop"]),
    default="report",
    help="When records were deleted before they were copied.",
    show_default=True,
)
@click.option("--paused", is_flag=True, help="Copy nothing until `resume`.")
@click.option("--gateway", default="", help="Of the engine that keeps the topic.")
@click.option("--token", default="", help="Key for the gateway, or the engine.")
@_dry_run
@_common
def create(
    name: str,
    source: str,
    target: str,
    url: str | None,
    data_dir: Path,
    as_json: bool,
    dry_run: bool,
    **options: Any,
) -> None:
    """Create a mirror that the control service keeps running, or change its settings.

    The URL is that of `tidecast mirror`. The secret of `secret_file`, or of
    TIDECAST_KAFKA_SECRET or TIDECAST_NATS_SECRET, and the certificates of `ca` are sent to the
    service, which seals the secret.
    """
    spec = spec_of(source, target) | options
    body = json.dumps({"spec": spec}).encode(), "application/json"
    answer = json.loads(send("PUT", _path(name, dry_run=dry_run), url, data_dir, body))
    if as_json:
        echo_json(answer)
    elif dry_run:
        click.echo(f"{answer['action']} mirror {name}: {len(answer['changes'])} settings")
        for warning in answer["warnings"]:
            click.echo(f"warning: {warning}")
    else:
        click.echo(f"mirror {name} copies {source} to {target}")


def spec_of(source: str, target: str) -> dict[str, Any]:
    """The settings of both ends, with the secret. Raises ConfigError."""
    from tidecast.config.sources import jetstream
    from tidecast.config.sources.kafka import SCHEME, kafka_source_of
    from tidecast.errors import ConfigError

    if source.startswith(jetstream.SCHEME):
        return _of_streams(source, target)
    if target.startswith(jetstream.SCHEME):
        raise ConfigError(
            f"--to {target}: nothing is copied to JetStream: allowed are a durable topic, also one "
            f"with storage {jetstream.SCHEME}..., and {SCHEME}HOST:PORT/TOPIC"
        )
    if source.startswith(SCHEME) == target.startswith(SCHEME):
        raise ConfigError(
            f"--from {source}, --to {target}: allowed are one {SCHEME}HOST:PORT/TOPIC, and one "
            "durable topic"
        )
    outward = target.startswith(SCHEME)
    kafka = kafka_source_of(target if outward else source)
    unknown = [field for field in ("certificate", "key", "group") if getattr(kafka, field)]
    if unknown:
        raise ConfigError(
            f"kafka.{unknown[0]}: a mirror of the service takes none: allowed are user, "
            "secret_file, mechanism, tls, ca"
        )
    ca = _text_of(kafka.ca)
    return {
        "direction": "to_kafka" if outward else "from_kafka",
        "topic": source if outward else target,
        "servers": kafka.servers,
        "kafka_topic": kafka.topic,
        "user": kafka.user,
        "secret": kafka.secret() if kafka.user else "",
        "mechanism": kafka.mechanism,
        "tls": kafka.tls,
        "ca": ca,
    }


def _of_streams(source: str, target: str) -> dict[str, Any]:
    """The settings of a mirror from JetStream, with the secret. Raises ConfigError."""
    from tidecast.config.sources.jetstream import jetstream_source_of
    from tidecast.errors import ConfigError

    found = jetstream_source_of(source)
    if "://" in target:
        raise ConfigError(f"--to {target}: from JetStream allowed is a durable topic")
    logins = ("token_file", "nkey_file", "creds_file", "certificate", "key")
    unknown = [field for field in logins if getattr(found, field)]
    if unknown:
        raise ConfigError(
            f"jetstream.{unknown[0]}: a mirror of the service takes none: allowed are subjects, "
            "domain, key_header, user, secret_file, tls, ca"
        )
    return {
        "direction": "from_jetstream",
        "topic": target,
        "servers": found.servers,
        "streams": found.streams,
        "subjects": found.subjects,
        "domain": found.domain,
        "key_header": found.key_header,
        "user": found.user,
        "secret": found.secret("secret_file") if found.user else "",
        "tls": found.tls,
        "ca": _text_of(found.ca),
    }


def _text_of(path: str) -> str:
    """The text of a file of certificates; empty: none. Raises ConfigError."""
    from tidecast.errors import ConfigError

    try:
        return Path(path).read_text("utf-8") if path else ""
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"ca: {path}: {problem}: a PEM file is needed") from None


def _operation(action: str, help_line: str) -> click.Command:
    @click.command(action, help=help_line)
    @click.argument("name")
    @_dry_run
    @_common
    def run(name: str, url: str | None, data_dir: Path, as_json: bool, dry_run: bool) -> None:
        path = _path(name, f"/{action}", dry_run=dry_run)
        answer = json.loads(send("POST", path, url, data_dir))
        if as_json:
            echo_json(answer)
        else:
            click.echo(f"mirror {name}: {'may ' + action if dry_run else action + 'd'}")

    return run


@click.command()
@click.argument("name")
@_dry_run
@_common
def delete(name: str, url: str | None, data_dir: Path, as_json: bool, dry_run: bool) -> None:
    """Delete a mirror. Its position stays: a mirror that is created with this name continues."""
    answer = json.loads(send("DELETE", _path(name, dry_run=dry_run), url, data_dir))
    if as_json:
        echo_json(answer)
    else:
        click.echo(f"mirror {name} {'can be deleted' if dry_run else 'is deleted'}")


def commands() -> list[click.Command]:
    """All of them, in the order of the help."""
    return [
        list_mirrors,
        show,
        create,
        _operation("pause", "Stop copying; the position stays."),
        _operation("resume", "Continue, or try again at once after an error."),
        delete,
    ]
