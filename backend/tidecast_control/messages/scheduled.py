"""Messages that wait for their delivery time, by way of the engines that keep their queues."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from tidecast_control.db import Database
from tidecast_control.kit import repository
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.problems import ProblemError, not_found
from tidecast_control.kit.rights import Need
from tidecast_control.link.hub import Hub
from tidecast_control.messages.browse import Kept, keepers
from tidecast_control.messages.decode import shown_message
from tidecast_control.messages.schemas import NotSearched, ScheduledMessage, ScheduledPage


async def scheduled(
    db: Database, hub: Hub, topic: str, chosen: dict[str, Any], actor: Actor
) -> ScheduledPage:
    """One page; ``chosen``: subscription, key, where, limit. Raises `not_found`, `conflict`.

    Without the right to payloads none is shown, nor searched.
    """
    actor.need_shown(topic)
    withheld = not actor.may("messages:read", Need("read_payloads", topic))
    if withheld and (chosen["key"] or chosen["where"]):
        actor.need("messages:read", Need("read_payloads", topic))

    def read() -> Kept:
        with db.begin() as session:
            row = repository.find(session, "topic", topic)
            if row is None:
                raise not_found("topic", topic)
            spec = row.spec
            if spec["mode"] != "durable":
                raise ProblemError("conflict", f"topic {topic} is live: it schedules nothing")
            return Kept(True, spec["owner"], spec["queues"], repository.names(session, "node"))

    asked = keepers(hub, await asyncio.to_thread(read))
    if not asked:
        raise ProblemError("no_node", "no engine is connected", None, 5.0)
    answers = await asyncio.gather(
        *(hub.ask(name, "scheduled", chosen | {"topic": topic}) for name in asked),
        return_exceptions=True,
    )
    return _page(topic, dict(zip(asked, answers, strict=True)), chosen["limit"], withheld=withheld)


def _page(
    topic: str, answers: dict[str, dict[str, Any] | BaseException], limit: int, *, withheld: bool
) -> ScheduledPage:
    found: list[ScheduledMessage] = []
    missing: list[NotSearched] = []
    refused: list[ProblemError] = []
    complete = True
    for name, answer in answers.items():
        if isinstance(answer, ProblemError):
            refused.append(answer)
            if answer.problem != "not_found":  # else the queues are not there
                missing.append(NotSearched(node=name, reason=answer.detail or answer.problem))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found += [_shown(each, withheld=withheld) for each in answer["records"]]
            complete = complete and answer["next"] is None
    if len(refused) == len(answers):
        raise next((each for each in refused if each.problem != "not_found"), refused[0])
    found.sort(key=lambda each: (int(each.deliver_at_ns), each.queue or 0, int(each.token or 0)))
    return ScheduledPage(
        topic=topic,
        messages=found[:limit],
        complete=complete and len(found) <= limit and not missing,
        missing=missing,
        withheld=withheld,
    )


def _shown(message: dict[str, Any], *, withheld: bool) -> ScheduledMessage:
    due_ns = int(message["deliver_at_ns"])
    return ScheduledMessage(
        **shown_message(message, withheld=withheld).model_dump(),
        deliver_at=datetime.fromtimestamp(due_ns / 1e9, UTC),
        deliver_at_ns=due_ns,
        subscriptions=message["subscriptions"],
    )
