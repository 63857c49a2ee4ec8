"""The command line. `main` loads a command's module only when that command runs.

Errors of the platform end a command with ``error: ...`` on standard error and exit code 1; a wrong
command line with exit code 2.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("tidecast.cli.engine:up", "Start Tidecast on this machine."),
    "down": ("tidecast.cli.engine:down", "Stop what `up` or `engine` started."),
    "engine": ("tidecast.cli.engine:engine", "Run an engine in the foreground."),
    "control": ("tidecast.cli.control:control", "Run the control service (REST, dashboard)."),
    "cluster": (
        "tidecast.cli.cluster.cluster:cluster",
        "Levels of engines: status, upgrade.",
    ),
    "node": ("tidecast.cli.node:node", "Credentials of engines: rotate, revoke."),
    "api": ("tidecast.cli.api:api", "One request to the control service, with a key."),
    "topic": ("tidecast.cli.topics.topic:topic", "Create, list, show, edit and delete topics."),
    "queue": ("tidecast.cli.topics.queue:queue", "List, inspect and verify queues on disk."),
    "pub": ("tidecast.cli.messages.pub:pub", "Publish a file, standard input or a message."),
    "sub": ("tidecast.cli.messages.sub:sub", "Subscribe and write what arrives."),
    "request": ("tidecast.cli.messages.requests:request", "Send a request, write the reply."),
    "reply": ("tidecast.cli.messages.requests:reply", "Respond to requests, with a command."),
    "mirror": (
        "tidecast.cli.messages.mirror:mirror",
        "Copy between Kafka and a durable topic, once.",
    ),
    "run": ("tidecast.app.command:run", "Run an app's handlers, in one process or several."),
    "top": ("tidecast.cli.top:top", "Watch rates, repairs, ring fill and laggards."),
    "recorder": ("tidecast.cli.recorder:recorder", "Read the flight recorder."),
    "faults": ("tidecast.cli.faults:faults", "Inject faults: loss, delay, reordering ..."),
    "pipeline": (
        "tidecast.cli.pipelines.pipeline:pipeline",
        "Archive, replay, roll up: jobs on Spark.",
    ),
    "subscription": (
        "tidecast.cli.topics.subscription:subscription",
        "Durable subscriptions: lag, seek.",
    ),
    "kafka": (
        "tidecast.cli.topics.kafka:kafka",
        "Kafka clients, groups, lag, resets.",
    ),
    "key": ("tidecast.cli.key:key", "Keys of remote clients for the topology file."),
    "wire": ("tidecast.cli.sealing.wire:wire", "Secrets of sealed transports: new, rotate, show."),
    "bench": ("tidecast.bench:cli", "Measure this machine."),
    "doctor": ("tidecast.cli.doctor:doctor", "Look for what makes multicast fail."),
    "completion": (
        "tidecast.cli.options.completion:completion",
        "Completion for bash, zsh, fish.",
    ),
}
"""Name -> (module:attribute, help line)."""

HIDDEN = {"watch": "tidecast.cli.processes.watch:watch"}
"""Commands that other commands run."""


class Failure(click.ClickException):
    """A platform error as the shell sees it: one clear message, exit code 1."""

    def show(self, file: Any = None) -> None:
        """Write ``error: ...`` to standard error."""
        click.echo(f"error: {self.format_message()}", err=True, file=file)


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of `COMMANDS`."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        del ctx
        where = COMMANDS[cmd_name][0] if cmd_name in COMMANDS else HIDDEN.get(cmd_name)
        if where is None:
            return None
        module, _, attribute = where.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        from tidecast.cli.options.examples import add_examples

        add_examples(cmd_name, command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands without importing anything."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=text)
            for name, (_, text) in COMMANDS.items()
            if name.startswith(incomplete)
        ]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest command when there is none of that name."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from tidecast.config.suggestions import near

            ctx.fail(f"no command {args[0]}{near(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Help lines without importing anything."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; platform errors become `Failure`."""
        from tidecast.errors import TidecastError

        try:
            return super().invoke(ctx)
        except TidecastError as problem:
            raise Failure(str(problem)) from problem
        except OSError as problem:
            if problem.errno not in _OUTPUT_ERRORS or problem.filename is not None:
                raise
            _leave_output()
            raise Failure(f"output cannot be written: {problem.strerror}") from problem


_OUTPUT_ERRORS = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT)


def _leave_output() -> None:
    """Drop the unwritten output, so that the exit does not try again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        import tidecast

        click.echo(f"tidecast {tidecast.__version__}")
        ctx.exit()


EPILOG = """\b
Examples:
  tidecast up --detach
  tidecast sub greetings
  tidecast pub greetings --message 'hello, tide'
  tidecast COMMAND --help
"""


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Tidecast: reliable multicast topics, from Python and from the shell.

    Every command takes --data-dir (environment: TIDECAST_DATA_DIR), so that several platforms live
    side by side on one machine.
    """
