"""Arguments that name a topic, a subscription, a transport: a shell completes them.

A completion must never fail or print anything: without an engine there are no names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from tidecast.cli.common import Ask, all_rows, asking
from tidecast.cli.options.params import Param

if TYPE_CHECKING:
    from tidecast.config.topology import TransportConfig


class _Name(Param):
    name = "text"

    def known(self, ctx: click.Context) -> Iterable[tuple[str, str]]:
        """(name, help) of each known name."""
        raise NotImplementedError

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As it is: the command reports an unknown name."""
        del param, ctx
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Names that begin so."""
        del param
        with contextlib.suppress(Exception):  # see the module
            return [
                CompletionItem(name, help=text)
                for name, text in sorted(self.known(ctx))
                if name.startswith(incomplete)
            ]
        return []


class TopicName(_Name):
    """A topic, or a pattern of them."""

    def __init__(self, *, durable: bool = False) -> None:
        self._durable = durable

    def known(self, ctx: click.Context) -> Iterable[tuple[str, str]]:
        """Topics of the engine, else of the topology file."""
        for row in _topics(ctx):
            mode = str(row.get("mode", "live"))
            if mode == "durable" or not self._durable:
                yield str(row["name"]), str(row.get("description") or mode)


class SubscriptionName(_Name):
    """A durable subscription of the topic on the command line."""

    def known(self, ctx: click.Context) -> Iterable[tuple[str, str]]:
        """Subscriptions of the engine."""
        with _asking(ctx) as ask:
            for row in ask("list"):
                if ctx.params.get("topic") in (None, row["pattern"]):
                    yield str(row["name"]), f"lag {row['lag']}"


class TransportName(_Name):
    """A transport of the topology."""

    def known(self, ctx: click.Context) -> Iterable[tuple[str, str]]:
        """Transports of the topology file."""
        from tidecast.config.topology import load_topology, topology_path

        found: list[TransportConfig] = load_topology(topology_path(_data_dir(ctx))).transports
        return [(each.name, each.kind) for each in found]


def complete_file(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The names of files."""
    del ctx, param
    return [CompletionItem(incomplete, type="file")]


def _data_dir(ctx: click.Context) -> Path:
    from tidecast.config.topology import default_data_dir

    return Path(ctx.params.get("data_dir") or default_data_dir())


def _asking(ctx: click.Context) -> contextlib.AbstractContextManager[Ask]:
    return asking(_data_dir(ctx), ctx.params.get("token"), ctx)


def _topics(ctx: click.Context) -> list[dict[str, Any]]:
    from tidecast.cli.common import server_of
    from tidecast.config.topology import load_topology, topology_path
    from tidecast.engine.process import running_pid

    directory = _data_dir(ctx)
    if server_of(ctx) is not None or running_pid(directory) is not None:
        with _asking(ctx) as ask:
            return all_rows(ask, "topics")
    topics = load_topology(topology_path(directory)).topics
    return [{"name": t.name, "mode": t.mode, "description": t.description} for t in topics]
