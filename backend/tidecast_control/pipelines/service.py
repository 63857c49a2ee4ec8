"""Pipelines: rules, status, runs, and recommendations of the capacity report."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime

from pydantic import ValidationError
from sqlmodel import Session

from tidecast.config.topology import is_pattern
from tidecast_control.api import resources
from tidecast_control.audit import service as audit
from tidecast_control.kit import repository as resources_repository
from tidecast_control.kit import rights
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.kind import Kind
from tidecast_control.kit.models import ResourceRow, Row, utc_now
from tidecast_control.kit.problems import ProblemError, not_found
from tidecast_control.kit.rights import Need
from tidecast_control.kit.schemas import MergePatch, Plan, ProblemItem, Status
from tidecast_control.live.world import World
from tidecast_control.pipelines import repository
from tidecast_control.pipelines.jobs import Place, cli_of
from tidecast_control.pipelines.models import PipelineLogRow, PipelineRunRow
from tidecast_control.pipelines.schedule import parse
from tidecast_control.pipelines.schemas import (
    Capacity,
    CapacityAdvice,
    Pipeline,
    PipelineInput,
    PipelineLog,
    PipelineRun,
    PipelineSpec,
    PipelineStatus,
)
from tidecast_control.topics.service import KIND as TOPIC


def _check(
    session: Session, name: str, spec: PipelineSpec, row: ResourceRow | None
) -> list[ProblemItem]:
    del session, name, row
    found = []

    def missing(field: str, allowed: str) -> None:
        detail = f"missing: the job {spec.job} needs it"
        found.append(ProblemItem(pointer=f"/spec/{field}", detail=detail, allowed=allowed))

    if spec.job in ("archive", "replay") and not spec.topic:
        missing("topic", "a topic" if spec.job == "replay" else "a topic or a pattern")
    if spec.job == "replay" and not spec.source:
        missing("source", "the topic that was archived")
    if spec.job != "archive" and is_pattern(spec.topic):
        found.append(ProblemItem(pointer="/spec/topic", detail="a pattern", allowed="a topic"))
    if spec.enabled and not spec.schedule:
        missing("schedule", "a schedule, since it is enabled")
    return found


def _warn(session: Session, name: str, spec: PipelineSpec, row: ResourceRow | None) -> list[str]:
    """Warn of a topic without which each run fails: it may be created before the first run."""
    del name, row
    if spec.job not in ("archive", "replay") or is_pattern(spec.topic):
        return []
    topic = resources_repository.find(session, "topic", spec.topic)
    if topic is not None and topic.spec["mode"] == "durable":
        return []
    found = "no topic" if topic is None else "a live topic, and no durable topic,"
    return [f"the service has {found} {spec.topic!r}: runs fail, unless an engine here has one"]


def run_view(row: PipelineRunRow) -> PipelineRun:
    """A run as the API shows it."""
    began, ended = row.started_at, row.finished_at
    duration_s = ((ended or utc_now()) - began).total_seconds() if began else None
    return PipelineRun.model_validate(
        row.model_dump(exclude={"spec", "pid", "pid_start"}) | {"duration_s": duration_s}
    )


def next_run(row: Row, last: PipelineRunRow | None) -> datetime | None:
    """When it is due by its schedule: after its last run, and after it was enabled."""
    if not row.spec["enabled"] or not row.spec["schedule"]:
        return None
    since = max(row.updated_at, last.queued_at) if last else row.updated_at
    return parse(row.spec["schedule"]).next_after(since)


def _status(
    newest: Mapping[str, PipelineRunRow], _world: World | None, rows: Sequence[Row]
) -> list[Status]:
    found: list[Status] = []
    for row in rows:
        last = newest.get(row.name)
        state = last.state if last is not None and last.state in repository.OPEN else "idle"
        found.append(
            PipelineStatus(
                observed_generation=row.generation,
                state=state,
                next_run_at=next_run(row, last),
                last_run=run_view(last) if last else None,
            )
        )
    return found


def _uses(session: Session, row: ResourceRow) -> list[str]:
    return ["it runs: stop it first"] if repository.open_run(session, row.name) else []


KIND = Kind(
    name="pipeline",
    path="pipelines",
    rights="pipelines",
    spec=PipelineSpec,
    resource=Pipeline,
    input=PipelineInput,
    in_topology=False,
    order=7,
    default_impact="none",
    delete_impact="none",
    check=_check,
    warn=_warn,
    uses=_uses,
    learn=repository.newest,
    keeps=False,
    status=_status,
)


# --- runs -----------------------------------------------------------------------------------------


def queue(session: Session, row: ResourceRow, place: Place, trigger: str, by: str) -> None:
    """Let a pipeline run as soon as a service has room for it."""
    session.add(
        PipelineRunRow(
            id=str(uuid.uuid4()),
            pipeline=row.name,
            job=row.spec["job"],
            trigger=trigger,
            requested_by=by,
            spec=row.spec,
            cli=cli_of(row.spec, place),
        )
    )
    session.flush()


def start(session: Session, name: str, place: Place, actor: Actor) -> PipelineRun:
    """Queue a run now. Raises `conflict` when one waits or runs."""
    row = resources.row_of(session, KIND, name, lock=True)
    actor.need("pipelines:write", *rights.of_resource(KIND.name, name, row.spec))
    if repository.open_run(session, name) is not None:
        raise ProblemError("conflict", f"pipeline {name} waits or runs already")
    queue(session, row, place, "user", actor.name)
    audit.record(session, actor, "start", KIND.name, name, None, None)
    found = repository.open_run(session, name)
    assert found is not None
    return run_view(found)


def stop(session: Session, name: str, actor: Actor) -> PipelineRun:
    """End the run that waits; one that runs is ended by the runner. Raises `conflict`."""
    row = resources.row_of(session, KIND, name)
    actor.need("pipelines:write", *rights.to_replace(KIND.name, name, row.spec))
    run = repository.open_run(session, name, lock=True)
    if run is None:
        raise ProblemError("conflict", f"pipeline {name} does not run")
    if run.state == "queued":
        run.state, run.finished_at = "stopped", utc_now()
        run.error = f"stopped by {actor.name} before it began"
    else:
        run.error, run.ending = f"stopped by {actor.name}", True
    session.add(run)
    session.flush()
    audit.record(session, actor, "stop", KIND.name, name, None, None)
    return run_view(run)


def plan_of_run(run: PipelineRun, before: str | None) -> Plan:
    """The changes to a run by a start (``before`` None) or a stop."""
    after = {"state": "queued" if before is None else "stopped"}
    was = None if before is None else {"state": before}
    return resources.plan_of("pipeline_run", run.pipeline, was, after, dry_run=True)


def runs(session: Session, name: str, limit: int, actor: Actor) -> list[PipelineRun]:
    """Newest first. Raises `not_found`."""
    resources.shown_row(session, KIND, name, actor)
    return [run_view(row) for row in repository.runs(session, name, limit)]


def log_of(session: Session, name: str, run: str, actor: Actor) -> PipelineLog:
    """The output of a finished run. Raises `not_found`."""
    resources.shown_row(session, KIND, name, actor)
    row = session.get(PipelineRunRow, run)
    if row is None or row.pipeline != name:
        raise not_found("pipeline run", run)
    log = session.get(PipelineLogRow, run)
    return PipelineLog(run=run, text=log.text if log else "", bytes=log.bytes if log else 0)


# --- capacity -------------------------------------------------------------------------------------


def capacity(session: Session, actor: Actor) -> Capacity:
    """The recommendations of the newest capacity report, for topics that the caller sees."""
    row = repository.newest_report(session, "capacity")
    if row is None:
        return Capacity(mend="start a pipeline with the job `capacity`; it reads the rollups")
    items = []
    for each in row.report.get("advice", []) if isinstance(row.report, dict) else []:
        try:
            advice = CapacityAdvice.model_validate(each)
        except ValidationError:
            continue  # internal topics have names that no user may change
        if actor.sees(advice.topic):
            items.append(advice)
    return Capacity(run=row.id, made_at=row.finished_at, items=items)


def apply_advice(session: Session, topic: str, actor: Actor, *, dry_run: bool) -> resources.Outcome:
    """Apply the recommended settings to a topic. Raises `not_found`."""
    actor.need("topics:write", Need("manage", topic))
    found = next((each for each in capacity(session, actor).items if each.topic == topic), None)
    if found is None:
        raise not_found("recommendation for topic", topic)
    if resources_repository.find(session, "topic", topic) is None:
        raise not_found("topic", topic)
    known = {k: v for k, v in found.spec.items() if k in TOPIC.spec.model_fields}
    return resources.patch(session, TOPIC, topic, MergePatch(spec=known), actor, dry_run=dry_run)
