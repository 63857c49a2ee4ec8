"""Flight-recorder records and counters of an engine as the API shows them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from tidecast_control.kit.problems import ProblemError
from tidecast_control.nodes.schemas import (
    DrainMove,
    DrainStay,
    NodeCounters,
    NodeDrain,
    RecorderPage,
    RecorderRecord,
)

ShownT = TypeVar("ShownT")


def shown(node: str, command: str, show: Callable[[], ShownT]) -> ShownT:
    """The answer of an engine through ``show``. Raises `node_failed`: it lacks the resource."""
    try:
        return show()
    except KeyError as missing:
        detail = f"{missing} is missing"
    except ValidationError as wrong:
        at = ".".join(str(each) for each in wrong.errors()[0]["loc"])
        detail = f"{at}: {wrong.errors()[0]['msg']}"
    except (TypeError, ValueError, AttributeError, OverflowError, OSError) as problem:
        detail = str(problem)
    raise ProblemError("node_failed", f"{node}: its answer to {command}: {detail[:200]}")


def shown_record(raw: dict[str, Any]) -> RecorderRecord:
    """One record."""
    at = datetime.fromtimestamp(raw["at_ns"] / 1e9, UTC)
    return RecorderRecord.model_validate(raw | {"at": at})


def shown_page(raw: dict[str, Any]) -> RecorderPage:
    """A page of records, newest last."""
    return RecorderPage(node=raw["node"], records=[shown_record(r) for r in raw["records"]])


def shown_counters(raw: dict[str, Any]) -> NodeCounters:
    """All counters; values as strings, for they are 64-bit."""
    as_text = ("name", "detail")
    rows = {
        kind: [{k: v if k in as_text else str(v) for k, v in row.items()} for row in each]
        for kind, each in raw["counters"].items()
    }
    at = datetime.fromtimestamp(raw["at_ns"] / 1e9, UTC)
    return NodeCounters(node=raw["node"], at=at, counters=rows)


def shown_drain(node: str, value: dict[str, Any], *, wanted: bool) -> NodeDrain:
    """The drain of a node, as its engine reports it."""
    moves = [
        DrainMove(
            at=datetime.fromtimestamp(int(each["at_ns"]) / 1e9, UTC),
            **{key: each[key] for key in ("kind", "topic", "epoch", "reason")},
        )
        for each in value["moves"]
    ]
    stays = [DrainStay(**each) for each in value["stays"]]
    rest = {key: value[key] for key in ("drained", "empty", "keeps", "moving", "stays_total")}
    return NodeDrain(node=node, wanted=wanted, stays=stays, moves=moves, **rest)
