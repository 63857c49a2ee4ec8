"""`tidecast topic`: in the running engine when there is one, else in the topology file."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidecast.cli.common import (
    all_rows,
    asking,
    console,
    control,
    dir_hint,
    echo_json,
    engine_options,
    human_bytes,
    server_of,
)
from tidecast.cli.options.names import TopicName
from tidecast.cli.options.params import Duration, Size

if TYPE_CHECKING:
    from tidecast.config.topology import TopicConfig, Topology

F = TypeVar("F", bound=Callable[..., Any])

_SETTINGS: list[tuple[str, Any, str]] = [
    ("transport", str, "Transport that carries it [default: the first]."),
    (
        "reliability",
        click.Choice(["reliable", "unordered", "unreliable"]),
        "The losses that are repaired.",
    ),
    ("flow", click.Choice(["min", "max", "rate"]), "Subscribers that slow a publisher down."),
    ("history_bytes", Size(), "Ring of a publisher: packets that it can send again."),
    ("receive_bytes", Size(), "Ring of a receiver."),
    ("large_history_bytes", Size(), "Ring of a publisher on the channel for large messages."),
    ("linger_us", Duration("us", whole=True), "How long a packet waits for more messages."),
    ("rate_packets_per_s", int, "Rate limit of a publisher; 0: none."),
    ("rate_bytes_per_s", Size(), "Rate limit of a publisher; 0: none."),
    (
        "on_full",
        click.Choice(["block", "error", "drop"]),
        "Behaviour of `publish` while the ring is full.",
    ),
    ("compression", click.Choice(["off", "tables"]), "Send keys and headers that repeat once."),
    ("nak_delay_us", Duration("us", whole=True), "How long a gap may be mere reordering."),
    ("nak_retry_us", Duration("us", whole=True), "When a repair is asked for again."),
    ("receiver_timeout_s", Duration(), "When a silent or stuck receiver is dropped."),
    ("close_linger_s", Duration(), "How long a closed publication still repairs."),
    ("mode", click.Choice(["live", "durable"]), "Memory only, or queues on disk as well."),
    ("owner", str, "The node that keeps all queues [default: each node its own]."),
    ("queues", int, "Queues of a durable topic; may grow, never shrink."),
    ("fsync", click.Choice(["none", "interval", "batch"]), "When appended bytes are synced."),
    ("fsync_interval_ms", Duration("ms"), "With --fsync interval: how often, at most."),
    ("retention_bytes", Size(), "Bytes that a queue keeps at most; 0: no limit."),
    ("retention_s", Duration(), "For how long a queue keeps records; 0: no limit."),
    ("retention_past_unacked", bool, "Delete what subscriptions have not acked, too."),
    ("segment_bytes", Size(), "Size of a segment file."),
    ("cache_bytes", Size(), "Memory of a queue for records that are read."),
    ("spool", bool, "Rings of publishers on disk: they outlive the machine's memory."),
    ("producer_ttl_s", Duration(), "For how long a silent producer's sequences are remembered."),
    (
        "storage",
        str,
        "Where records are stored: local, kafka://HOST:PORT/TOPIC, jetstream://HOST:PORT/STREAM.",
    ),
    ("id", int, "Id in packets [default: derived from the name]."),
    ("description", str, "The purpose of the topic."),
]
"""Field of TopicConfig, type, help."""


def _settings_options(command: F) -> F:
    for field, kind, text in reversed(_SETTINGS):
        flag = "--" + field.replace("_", "-")
        name = "topic_id" if field == "id" else field
        command = click.option(flag, name, type=kind, default=None, help=text)(command)
    return click.option(
        "--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label; may be repeated."
    )(command)


class _Create(click.Command):
    """`topic create`; its help shows the defaults of the topology."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Command`."""
        from msgspec.structs import fields

        from tidecast.config.topology import TopicConfig

        defaults = {f.name: f.default for f in fields(TopicConfig)}
        for option in self.params:
            value = defaults.get(option.name or "")
            if isinstance(option, click.Option) and isinstance(value, int | float | str) and value:
                size = isinstance(value, int) and str(option.name).endswith("_bytes")
                shown = human_bytes(float(value)).replace(".0 ", " ") if size else value
                option.help = f"{option.help} [default: {shown}]"
        super().format_options(ctx, formatter)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """Settings that were given, under their names in TopicConfig."""
    labels = values.pop("labels")
    changes = {k: v for k, v in values.items() if v is not None}
    if "topic_id" in changes:
        changes["id"] = changes.pop("topic_id")
    if labels:
        pairs = [label.partition("=") for label in labels]
        if any(not equals or not key for key, equals, _ in pairs):
            raise click.BadParameter("allowed is KEY=VALUE", param_hint="--label")
        changes["labels"] = {key: value for key, _, value in pairs}
    return changes


class _File:
    """Topics of a platform whose engine does not run: in its topology file."""

    def __init__(self, data_dir: Path) -> None:
        from tidecast.config.topology import first_topology, load_topology, topology_path
        from tidecast.errors import NotFound

        self.path = topology_path(data_dir)
        try:
            self.topology = load_topology(self.path)
        except NotFound:  # a look makes none
            self.topology = first_topology(data_dir)

    def topics(self) -> list[TopicConfig]:
        return self.topology.topics

    def create_topic(self, topic: TopicConfig) -> TopicConfig:
        from tidecast.config.topology import add_topic

        self._save(add_topic(self.topology, topic))
        return self.topology.topics[-1]

    def edit_topic(
        self, name: str, changes: dict[str, Any], *, recreate: bool = False
    ) -> TopicConfig:
        from tidecast.config.topology import change_topic

        del recreate
        self._save(change_topic(self.topology, name, changes))
        return _find(self.topology.topics, name)

    def delete_topic(self, name: str) -> None:
        from tidecast.config.topology import remove_topic

        self._save(remove_topic(self.topology, name))

    def _save(self, topology: Topology) -> None:
        from tidecast.config.topology import save_topology

        save_topology(topology, self.path)
        self.topology = topology

    def close(self) -> None:
        pass


class _RemoteTopics:
    """Topics of an engine behind a gateway."""

    def __init__(self, data_dir: Path, token: str | None) -> None:
        self._open = contextlib.ExitStack()
        self._ask = self._open.enter_context(asking(data_dir, token))

    def topics(self) -> list[TopicConfig]:
        return [_config(row) for row in all_rows(self._ask, "topics")]

    def create_topic(self, topic: TopicConfig) -> TopicConfig:
        import msgspec

        settings = msgspec.to_builtins(topic)
        return _config(self._ask("create_topic", topic=settings.pop("name"), settings=settings))

    def edit_topic(
        self, name: str, changes: dict[str, Any], *, recreate: bool = False
    ) -> TopicConfig:
        asked = {"topic": name, "settings": changes, "recreate": recreate}
        return _config(self._ask("edit_topic", **asked))

    def delete_topic(self, name: str) -> None:
        self._ask("delete_topic", topic=name)

    def close(self) -> None:
        self._open.close()


def _config(row: Any) -> TopicConfig:
    import msgspec

    from tidecast.config.topology import TopicConfig

    return msgspec.convert(row, TopicConfig)


def _target(data_dir: Path, token: str | None) -> tuple[Any, str]:
    """Where topics are changed, and how to call it. The engine when one runs."""
    from tidecast.engine.process import running_pid

    server = server_of()
    if server is not None:
        return _RemoteTopics(data_dir, token), f"at {server}"
    pid = running_pid(data_dir)
    if pid is not None:
        return control(data_dir, token), f"in the running engine (pid {pid})"
    file = _File(data_dir)
    return file, f"in {file.path} (no engine runs)"


def _plain(topic: TopicConfig) -> dict[str, Any]:
    values = {field: getattr(topic, field) for field in topic.__struct_fields__}
    return values | {"id": topic.wire_id}


def _attached(data_dir: Path, token: str | None) -> list[dict[str, Any]]:
    """Topics that adapters of the running engine keep, or will keep once their systems are back."""
    from tidecast.cli.topics.subscription import asked_if_running

    return [
        {
            "name": row["topic"],
            "mode": "durable",
            "queues": row["queues"],
            "adapter": row["adapter"],
            "state": row["state"],
            "detail": row["detail"],
        }
        for row in asked_if_running(data_dir, token, "adapters")
    ]


def _find(topics: list[TopicConfig], name: str) -> TopicConfig:
    from tidecast.config.suggestions import near
    from tidecast.errors import NotFound

    found = next((t for t in topics if t.name == name), None)
    if found is None:
        known = near(name, [each.name for each in topics])
        raise NotFound(f"no topic {name}{known}: `tidecast topic list` shows the topics")
    return found


def _command_for(topic: TopicConfig) -> str:
    """The `topic create` line that makes this topic again."""
    import msgspec

    parts = ["tidecast", "topic", "create", topic.name]
    for field, value in msgspec.to_builtins(topic).items():
        if field == "labels":
            parts += [part for k, v in value.items() for part in ("--label", f"{k}={v}")]
        elif field != "name" and value is not None:
            parts += ["--" + field.replace("_", "-"), str(value)]
    return shlex.join(parts)


@click.group()
def topic() -> None:
    """Create, list, show, edit and delete topics.

    Changes go to the running engine (or that of --server), which also saves them, or else to the
    topology file.
    """


@topic.command("create", cls=_Create)
@click.argument("name")
@_settings_options
@click.option("--if-missing", is_flag=True, help="No error when it exists already.")
@engine_options
def create(
    name: str, data_dir: Path, token: str | None, as_json: bool, if_missing: bool, **settings: Any
) -> None:
    """Create topic NAME: tokens joined by dots, such as md.eu.bonds."""
    from tidecast.config.check import build, raise_problems, shown
    from tidecast.config.topology import TopicConfig
    from tidecast.errors import Conflict

    problems: list[str] = []
    wanted = build(TopicConfig, {"name": name, **_given(settings)}, "", problems)
    raise_problems(problems, f"topic {shown(name)}")
    assert wanted is not None
    target, where = _target(data_dir, token)
    try:
        made, verb = target.create_topic(wanted), "created"
    except Conflict:
        if not if_missing:
            raise
        made, verb = _find(target.topics(), name), "exists already:"
    finally:
        target.close()
    if as_json:
        echo_json(_plain(made))
    else:
        click.echo(f"{verb} topic {made.name} (id {made.wire_id}, {made.transport}) {where}")


@topic.command("list")
@click.argument("pattern", type=TopicName(), default=">")
@engine_options
def list_topics(pattern: str, data_dir: Path, token: str | None, as_json: bool) -> None:
    """List topics, or topics that match PATTERN (* one token, > all that follow).

    Topics that adapters of the engine keep are listed, too: they are in no topology.
    """
    from tidecast.config.topology import check_pattern, matches

    check_pattern(pattern)
    target, where = _target(data_dir, token)
    topics = sorted((t for t in target.topics() if matches(pattern, t.name)), key=lambda t: t.name)
    target.close()
    attached = [row for row in _attached(data_dir, token) if matches(pattern, row["name"])]
    if as_json:
        echo_json([_plain(t) | {"adapter": ""} for t in topics] + attached)
        return
    if not topics and not attached:
        click.echo(f"no topics {where}; make one: tidecast topic create NAME{dir_hint(data_dir)}")
        return
    from rich.table import Table

    table = Table(
        "topic",
        "id",
        "mode",
        "transport",
        "reliability",
        "flow",
        "history",
        "receive",
        "limit",
        box=None,
        pad_edge=False,
    )
    for each in topics:
        table.add_row(
            each.name,
            str(each.wire_id),
            each.mode,
            each.transport,
            each.reliability,
            each.flow,
            human_bytes(each.history_bytes),
            human_bytes(each.receive_bytes),
            _limit(each),
        )
    for row in attached:
        waits = ", waiting" if row["state"] == "waiting" else ""
        table.add_row(row["name"], "-", f"adapter {row['adapter']}{waits}", *["-"] * 6)
    console().print(table)


def _limit(topic: TopicConfig) -> str:
    parts = []
    if topic.rate_packets_per_s:
        parts.append(f"{topic.rate_packets_per_s} packets/s")
    if topic.rate_bytes_per_s:
        parts.append(f"{human_bytes(topic.rate_bytes_per_s)}/s")
    return ", ".join(parts) or "none"


@topic.command("show")
@click.argument("name", type=TopicName())
@engine_options
def show(name: str, data_dir: Path, token: str | None, as_json: bool) -> None:
    """Show all settings of topic NAME, and the command that makes it again."""
    target, where = _target(data_dir, token)
    topics = target.topics()
    target.close()
    attached = next((row for row in _attached(data_dir, token) if row["name"] == name), None)
    if attached is not None:
        if as_json:
            echo_json(attached)
            return
        if attached["state"] == "waiting":
            click.echo(
                f"# {where}: adapter {attached['adapter']} waits for its system, and tries "
                f"again: {attached['detail']}"
            )
            return
        click.echo(f"# {where}: {attached['queues']} queues of adapter {attached['adapter']}")
        click.echo("# consumed here, not published to; see `tidecast queue list`")
        return
    found = _find(topics, name)
    if as_json:
        echo_json(_plain(found))
        return
    import yaml

    click.echo(f"# {where}")
    click.echo(yaml.safe_dump(_plain(found), sort_keys=False, allow_unicode=True), nl=False)
    click.echo(f"# {_command_for(found)}{dir_hint(data_dir)}")


@topic.command("edit")
@click.argument("name", type=TopicName())
@_settings_options
@click.option(
    "--recreate",
    is_flag=True,
    help="Also change settings that recreate the topic: its publications and subscriptions end.",
)
@engine_options
def edit(
    name: str, data_dir: Path, token: str | None, as_json: bool, recreate: bool, **settings: Any
) -> None:
    """Change settings of topic NAME. Rate limits, linger, labels and description change live."""
    changes = _given(settings)
    if not changes:
        raise click.UsageError("nothing to change: give at least one setting")
    target, where = _target(data_dir, token)
    try:
        made = target.edit_topic(name, changes, recreate=recreate)
    finally:
        target.close()
    if as_json:
        echo_json(_plain(made))
    else:
        what = ", ".join(f"{field}={getattr(made, field)}" for field in changes)
        click.echo(f"changed topic {name} {where}: {what}")


@topic.command("delete")
@click.argument("name", type=TopicName())
@click.option("--yes", is_flag=True, help="Do not ask.")
@engine_options
def delete(name: str, yes: bool, data_dir: Path, token: str | None, as_json: bool) -> None:
    """Delete topic NAME; its publications and subscriptions end."""
    target, where = _target(data_dir, token)
    try:
        _find(target.topics(), name)
        if not yes:
            click.confirm(f"delete topic {name} {where}?", abort=True)
        target.delete_topic(name)
    finally:
        target.close()
    if as_json:
        echo_json({"deleted": name})
    else:
        click.echo(f"deleted topic {name} {where}")
