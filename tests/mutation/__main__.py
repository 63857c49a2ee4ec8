"""`python -m tests.mutation [NAME ...]`: run the mutations, or those named (a prefix will do).

Ends with 1 when a mutation survives or cannot be judged, with 2 when a test fails without one.
"""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.mutation.entries import MUTATIONS
from tests.mutation.entry import Mutation
from tests.mutation.run import KILLED, Outcome, baseline, run_one, workshop


def chosen(names: tuple[str, ...], shard: str) -> list[Mutation]:
    """The mutations to run. Raises click.UsageError for a name that fits none."""
    found = [one for one in MUTATIONS if not one.equivalent]
    for name in names:
        if not any(one.name.startswith(name) for one in found):
            raise click.UsageError(f"no mutation begins with {name!r} (--list shows all)")
    if names:
        found = [one for one in found if one.name.startswith(names)]
    number, _, of = shard.partition("/")
    return found[int(number) - 1 :: int(of)]


def show(console: Console, outcomes: list[Outcome]) -> None:
    """The verdicts that need somebody, and the count."""
    for one in outcomes:
        if one.verdict != KILLED:
            console.print(f"\n{one.verdict} {one.mutation.name}: {one.mutation.breaks}")
            console.print(f"{one.mutation.file}; tests: {' '.join(one.mutation.tests)}")
            console.print(one.detail, markup=False)
    killed = sum(one.verdict == KILLED for one in outcomes)
    console.print(f"\n{killed} of {len(outcomes)} mutations killed")


@click.command(help=__doc__)
@click.argument("names", nargs=-1)
@click.option("--shard", default="1/1", show_default=True, help="This part of so many.")
@click.option("--list", "listed", is_flag=True, help="List the mutations; run none.")
@click.option(
    "--baseline/--no-baseline",
    "checked",
    default=True,
    show_default=True,
    help="First run the tests without a mutation.",
)
def main(names: tuple[str, ...], shard: str, listed: bool, checked: bool) -> None:
    """Run mutations."""
    console = Console(soft_wrap=True, highlight=False)
    mutations = chosen(names, shard)
    if listed:
        for each in MUTATIONS:
            console.print(f"{each.name}: {each.breaks}", markup=False)
            if each.equivalent:
                console.print(f"    equivalent: {each.equivalent}", markup=False)
        return
    bar = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    outcomes = []
    with workshop() as place, Progress(*bar, console=console) as progress:
        task = progress.add_task("tests without a mutation", total=len(mutations))
        problem = baseline(place, mutations) if checked else ""
        if problem:
            console.print(problem, markup=False)
            sys.exit(2)
        for each in mutations:
            progress.update(task, description=each.name)
            outcome = run_one(place, each)
            outcomes.append(outcome)
            first = outcome.detail.partition("\n")[0]
            console.print(
                f"{outcome.verdict:8} {each.name} {outcome.seconds:.0f} s {first}", markup=False
            )
            progress.advance(task)
    show(console, outcomes)
    sys.exit(any(one.verdict != KILLED for one in outcomes))


if __name__ == "__main__":
    main()
