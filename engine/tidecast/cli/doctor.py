"""`tidecast doctor`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tidecast.cli.common import console, data_dir_option, echo_json, json_option

_MARKS = {
    "ok": "[green]ok  [/green]",
    "warn": "[yellow]warn[/yellow]",
    "fail": "[red]FAIL[/red]",
}


@click.command()
@click.option(
    "--topology",
    "topology_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Check this topology, as `engine --topology` runs it, not the data directory's.",
)
@data_dir_option
@json_option
def doctor(data_dir: Path, topology_file: Path | None, as_json: bool) -> None:
    """Find causes of failing multicast on this machine, and their fixes.

    Exit code 1 when something failed; warnings do not count.
    """
    import msgspec
    from rich.markup import escape

    from tidecast.doctor import FAIL, examine

    findings = examine(data_dir, topology_file=topology_file)
    failed = sum(f.status == FAIL for f in findings)
    if as_json:
        echo_json({"failed": failed, "findings": msgspec.to_builtins(findings)})
    else:
        out = console()
        for each in findings:
            said = f"{escape(each.check)}: {escape(each.detail)}"
            out.print(f"{_MARKS[each.status]}  {said}", markup=True)
            if each.mend:
                out.print(f"      fix: {each.mend}", style="bold")
        warned = sum(f.status == "warn" for f in findings)
        out.print(f"{len(findings)} checks, {failed} failed, {warned} warnings")
    sys.exit(1 if failed else 0)
