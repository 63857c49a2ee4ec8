"""Idempotency-Key: a POST repeated with the same key is answered as the first time."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from fastapi import Header
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError

from tidecast_control.api.http import digest
from tidecast_control.db import Database
from tidecast_control.kit import repository
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.models import IdempotencyRow
from tidecast_control.kit.problems import ProblemError

IdempotencyKey = Annotated[
    str | None,
    Header(
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        alias="Idempotency-Key",
        description="A repeat with the same key and body gets the first answer",
    ),
]
UNDER_WAY = (
    "the first request with this key is under way, or its outcome could not be stored: look at its "
    "effect, and use another key for another request"
)
log = logging.getLogger("tidecast.control")
ModelT = TypeVar("ModelT", bound=BaseModel)


async def once(
    db: Database,
    key: str | None,
    actor: Actor,
    request: dict[str, Any],
    model: type[ModelT],
    work: Callable[[], Awaitable[ModelT]],
) -> ModelT:
    """Do the work, or give the answer of the first time. A failure frees the key.

    Work that is done is answered so, also when Postgres does not take the answer: a repeat is then
    refused, and does not do it again. Raises `idempotency_mismatch`, and `conflict` while the first
    request is under way.
    """
    if key is None:
        return await work()
    mark = digest(json.dumps(request, sort_keys=True).encode())
    row = IdempotencyRow(key=key, actor=f"{actor.kind} {actor.name}", digest=mark, status=0)

    def claim() -> dict[str, Any] | None:
        with db.begin() as session:
            before = repository.claim_key(session, row)
            if before is None:
                return None
            if before.digest != mark:
                raise ProblemError("idempotency_mismatch")
            if before.status == 0:
                raise ProblemError("conflict", UNDER_WAY)
            return before.body

    def keep(body: dict[str, Any] | None) -> None:
        try:
            with db.begin() as session:
                if body is None:
                    repository.free_key(session, row.key, row.actor)
                else:
                    repository.keep_answer(session, row.key, row.actor, 200, body)
        except SQLAlchemyError as problem:
            log.warning("Idempotency-Key: the outcome is not stored: %s", problem)

    known = await run_in_threadpool(claim)
    if known is not None:
        return model.model_validate(known)
    try:
        answer = await work()
    except BaseException:
        await run_in_threadpool(keep, None)
        raise
    await run_in_threadpool(keep, answer.model_dump(mode="json"))
    return answer
