"""`tidecast completion`: a script that lets a shell complete commands, options, topics."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from tidecast.cli.common import data_dir_option

VARIABLE = "_TIDECAST_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@data_dir_option
def completion(shell: str, data_dir: object) -> None:
    """Write the completion script for SHELL: commands, options, topics, subscriptions.

    bash (4.4 or newer): put `source <(tidecast completion bash)` into ~/.bashrc. zsh: the same in
    ~/.zshrc, behind compinit. fish: write it to ~/.config/fish/completions/tidecast.fish. Names are
    the names of the running engine (TIDECAST_DATA_DIR, TIDECAST_SERVER), else of the topology file.
    """
    del data_dir
    found = get_completion_class(shell)
    assert found is not None
    click.echo(
        found(click.get_current_context().find_root().command, {}, "tidecast", VARIABLE).source()
    )
