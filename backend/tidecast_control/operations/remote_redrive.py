"""Re-drive of dead letters, when one engine has the letters and another the subscription's queues.

Engines send each other no commands. So the service asks the engine of the subscription which
letters were sent again, lets an engine with letters send a page of other letters, and lets the
first engine note these letters. The engine with the letters sends no letter twice while it runs,
also when the note failed: the next page is noted together with them.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tidecast_control.kit.problems import ProblemError
from tidecast_control.link.hub import Hub

PAGE_MAX = 1000
"""Letters of one command: each is stored before the engine answers."""

Json = dict[str, Any]
Answers = dict[str, Json | BaseException]


async def redrive(hub: Hub, args: Json, answers: Answers) -> Answers:
    """``answers`` of the engines, completed where they do not keep the letters themselves."""
    refused = [node for node, each in answers.items() if _is_missing(each)]
    completed = await asyncio.gather(
        *(_of_node(hub, node, args, list(answers)) for node in refused)
    )
    found = {n: each for n, each in zip(refused, completed, strict=True) if each is not None}
    return answers | found


def _is_missing(answer: Json | BaseException) -> bool:
    return isinstance(answer, ProblemError) and answer.problem == "not_found"


async def _of_node(hub: Hub, node: str, args: Json, nodes: list[str]) -> Json | ProblemError | None:
    """The letters of a subscription at ``node``; None: its own answer was right."""
    whole: Json = {"records": 0, "scanned": 0, "unverified": 0, "tokens": [], "next": None}
    limit = int(args.get("count_max", PAGE_MAX))
    try:
        while whole["records"] < limit:
            marks = await hub.ask(node, "redrive_marks", args)
            if marks["here"]:
                return None
            left = min(limit - whole["records"], PAGE_MAX)
            wanted = args | {"marks": marks, "limit": left, "after": whole["next"]}
            page = await _page(hub, wanted, [each for each in nodes if each != node])
            if page is None:
                return None
            if not args["dry_run"]:
                await hub.ask(node, "redrive_note", args | {"sent": page["sent"]})
            for name in ("records", "scanned", "unverified"):
                whole[name] += page[name]
            whole["tokens"] = (whole["tokens"] + page["tokens"])[:PAGE_MAX]
            whole |= {"next": page["next"], "sent_by": page["sent_by"]}
            if page["next"] is None:
                break
    except ProblemError as problem:
        return None if _is_missing(problem) and not whole["records"] else problem
    return whole | {"dry_run": args["dry_run"]}


async def _page(hub: Hub, args: Json, nodes: list[str]) -> Json | None:
    """A page of the engine that keeps the letters; None: none of ``nodes`` does."""
    for node in nodes:
        try:
            return await hub.ask(node, "redrive_page", args) | {"sent_by": node}
        except ProblemError as problem:
            if not _is_missing(problem):
                raise
    return None
