"""Every command's help has examples, and each of them is a line that the command takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tidecast.cli import main
from tidecast.cli.options.examples import EXAMPLES

EXAMPLES_MIN = 2
ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")


def _walk(group: click.Group, *before: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*before, name), command
        if isinstance(command, click.Group):
            yield from _walk(command, *before, name)


COMMANDS = {" ".join(names): command for names, command in _walk(main)}


SERVE_OR_WRITE = {
    "up": "serves and logs",
    "engine": "serves and logs",
    "control": "serves and logs",
    "api": "writes what the service answers, which is JSON",
    "completion": "writes a script of the shell",
}
"""Commands without --json, and why."""


def test_every_command_has_json_for_scripts() -> None:
    without = {
        name
        for name, command in COMMANDS.items()
        if not isinstance(command, click.Group)
        and not any("--json" in each.opts for each in command.params)
    }
    assert without == set(SERVE_OR_WRITE)


def examples_in(help_text: str) -> list[str]:
    _, _, below = help_text.partition("\n  Examples:\n")
    return [line.strip() for line in below.splitlines() if line.strip()]


def arguments_of(line: str) -> list[str]:
    """The arguments of `tidecast` in a line, as a shell splits it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>()")
    lexer.whitespace_split = True
    words = list(lexer)
    while ASSIGNMENT.fullmatch(words[0]):
        words = words[1:]
    first = words.index("tidecast") + 1
    ends = [i for i in range(first, len(words)) if words[i] in ("|", ">", ")")]
    return words[first : ends[0] if ends else None]


def parsed(arguments: list[str]) -> str:
    """The command that takes the arguments, parsed to their end."""
    command: click.Command = main
    context = main.make_context("tidecast", list(arguments))
    names = []
    while isinstance(command, click.Group):
        left = [*context._protected_args, *context.args]
        if not left and command.invoke_without_command:
            break
        name, found, arguments = command.resolve_command(context, left)
        assert name is not None
        assert found is not None
        names.append(name)
        command, context = found, found.make_context(name, arguments, parent=context)
    return " ".join(names)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_ends_with_examples_that_parse(name: str) -> None:
    shown = CliRunner().invoke(main, [*name.split(), "--help"]).output
    lines = examples_in(shown)
    enough = min(EXAMPLES_MIN, len(getattr(COMMANDS[name], "commands", (1, 2))))
    assert len(lines) >= enough, f"write two examples of {name} into cli/options/examples.py"
    assert len(set(lines)) == len(lines)
    for line in lines:
        of = parsed(arguments_of(line))
        assert of == name or of.startswith(f"{name} "), f"{line!r} is an example of {of}"


def test_no_example_is_left_of_a_command_that_is_gone() -> None:
    assert not EXAMPLES.keys() - COMMANDS.keys()


def test_a_line_with_a_mistake_does_not_parse() -> None:
    for line in ("tidecast sub a --nonsense", "tidecast topic create", "tidecast pub a --count x"):
        with pytest.raises(click.UsageError):
            parsed(arguments_of(line))
    assert arguments_of("A=b printf 'x|y' | tidecast pub t - > out") == ["pub", "t", "-"]
    assert arguments_of("source <(tidecast completion bash)") == ["completion", "bash"]
