"""Mirrors: rules, status, pause and resume, and the input of its process."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from sqlmodel import Session

from tidecast.config.sources.jetstream import jetstream_source
from tidecast.config.sources.kafka import kafka_source
from tidecast.errors import ConfigError
from tidecast.mirror.settings import NAME, Job
from tidecast_control.api import resources
from tidecast_control.audit import service as audit
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.kind import Kind
from tidecast_control.kit.models import ResourceRow, Row, utc_now
from tidecast_control.kit.repository import find
from tidecast_control.kit.schemas import MergePatch, ProblemItem, Status
from tidecast_control.live.world import World
from tidecast_control.mirrors import repository, secrets
from tidecast_control.mirrors.models import MirrorStateRow
from tidecast_control.mirrors.schemas import (
    Mirror,
    MirrorEvent,
    MirrorInput,
    MirrorQueue,
    MirrorSpec,
    MirrorStatus,
)
from tidecast_control.operations.models import OperationRow
from tidecast_control.operations.schemas import Operation

OF_STREAMS = ("streams", "subjects", "domain", "key_header")
FIXED = ("direction", "topic", "kafka_topic", "streams", "subjects", "key_header")
KAFKA = ("servers", "user", "mechanism", "tls")
ALLOWED = {
    "servers": "HOST:PORT, separated by commas",
    "streams": "1 to 1024 names of streams, separated by commas",
    "subjects": "subjects of a single stream without a message in common, or nothing",
    "domain": "a name without dots, or nothing",
    "key_header": "printable letters of ASCII without a colon, or nothing",
}
Wrong = Callable[[str, str, str], None]


def kafka_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the cluster, without its secrets."""
    return {name: spec[name] for name in KAFKA} | {"topic": spec["kafka_topic"]}


def jetstream_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the streams, without secrets."""
    named = ("servers", "user", "tls", *OF_STREAMS)
    return {name: spec[name] for name in named if spec.get(name)}


def _check_source(spec: MirrorSpec, wrong: Wrong) -> None:
    """Are servers, topic or streams such as the direction needs?"""
    given = spec.model_dump()
    if spec.direction == "from_jetstream":
        if spec.kafka_topic:
            wrong("kafka_topic", "a mirror from JetStream has none", "nothing")
        if not spec.streams:
            wrong("streams", "missing", ALLOWED["streams"])
            return
        try:
            jetstream_source(jetstream_of(given))
        except ConfigError as problem:
            for each in problem.problems or [str(problem)]:
                field, _, detail = each.removeprefix("jetstream.").partition(": ")
                known = field if field in ALLOWED else "servers"
                wrong(known, detail if known == field else each, ALLOWED[known])
        return
    for field in OF_STREAMS:
        if given[field]:
            wrong(field, f"it is of JetStream, and direction is {spec.direction}", "nothing")
    if not spec.kafka_topic:
        wrong("kafka_topic", "missing", "the topic on the Kafka cluster")
        return
    try:
        kafka_source(kafka_of(given))
    except ConfigError as problem:
        wrong("servers", str(problem).removeprefix("kafka."), ALLOWED["servers"])


def _check(
    session: Session, name: str, spec: MirrorSpec, row: ResourceRow | None
) -> list[ProblemItem]:
    del session
    found = []

    def wrong(field: str, detail: str, allowed: str) -> None:
        found.append(ProblemItem(pointer=f"/spec/{field}", detail=detail, allowed=allowed))

    if not NAME.fullmatch(name):
        detail = f"{len(name)} characters"
        found.append(ProblemItem(pointer="/metadata/name", detail=detail, allowed="at most 100"))
    for field in FIXED if row is not None else ():
        before = row.spec.get(field, "") if row is not None else ""
        if getattr(spec, field) != before:
            wrong(
                field, "it is fixed: its position is for this topic", f"{before}, or a new mirror"
            )
    _check_source(spec, wrong)
    if bool(spec.user) != bool(spec.secret):
        missing, given = ("secret", "user") if spec.user else ("user", "secret")
        wrong(missing, f"missing: {given} is set", "both, or neither")
    if spec.ca and not spec.tls:
        wrong("tls", "false: ca needs TLS", "true")
    if spec.direction == "to_kafka":
        if spec.place == "key":
            wrong("place", "key: to Kafka each queue goes to its partition", "auto, queue")
        if spec.gateway:
            allowed = (
                "nothing: it runs on the service's host, beside the engine of its data directory"
            )
            wrong("gateway", "a mirror to Kafka reads the files of the log", allowed)
    return found


def _warn(session: Session, name: str, spec: MirrorSpec, row: ResourceRow | None) -> list[str]:
    del name, row
    found = []
    if spec.user and not spec.tls:
        if spec.direction == "from_jetstream":
            found.append("the secret crosses the network readable: use tls")
        elif spec.mechanism == "PLAIN":
            found.append("the secret crosses the network readable: use tls, or SCRAM")
    if find(session, "topic", spec.topic) is None:
        found.append(
            f"the service has no topic {spec.topic!r}: the mirror waits, unless its engine has one"
        )
    return found


def _changed(session: Session, name: str, spec: Mapping[str, Any] | None) -> None:
    if spec is None:
        repository.forget(session, name)
        secrets.forget(session, name)


def _status(
    states: Mapping[str, MirrorStateRow], _world: World | None, rows: Sequence[Row]
) -> list[Status]:
    return [status_of(row, states.get(row.name)) for row in rows]


def status_of(row: Row, state: MirrorStateRow | None) -> MirrorStatus:
    """How a mirror does."""
    shown = MirrorStatus(observed_generation=row.generation)
    if state is not None:
        fields = state.model_dump(exclude={"mirror", "holder", "held_until", "queues", "events"})
        shown = shown.model_copy(update=fields)
        shown.queues = [MirrorQueue.model_validate(each) for each in state.queues]
        shown.events = [MirrorEvent.model_validate(each) for each in reversed(state.events)]
        shown.position = sum(each.position for each in shown.queues)
        if not row.spec["paused"] and (not state.holder or state.held_until < utc_now()):
            shown.state, shown.rate = "starting", 0.0
    if row.spec["paused"]:
        shown.state, shown.rate, shown.retry_at = "paused", 0.0, None
    if shown.state == "running" and shown.rate > 0:
        shown.eta_s = shown.lag / shown.rate
    return shown


KIND = Kind(
    name="mirror",
    path="mirrors",
    rights="mirrors",
    spec=MirrorSpec,
    resource=Mirror,
    input=MirrorInput,
    in_topology=False,
    order=7,
    seal=secrets.seal,
    check=_check,
    warn=_warn,
    learn=repository.states,
    keeps=False,
    status=_status,
    changed=_changed,
)


def job_of(session: Session, row: ResourceRow, data_dir: Path) -> bytes:
    """The input of a mirror's process, secrets included. Raises Unopened, KeyError."""
    spec = row.spec
    of_streams = spec["direction"] == "from_jetstream"
    job = Job(
        name=row.name,
        direction=spec["direction"],
        topic=spec["topic"],
        kafka={} if of_streams else kafka_of(spec),
        jetstream=jetstream_of(spec) if of_streams else {},
        data_dir=str(data_dir),
        secret=secrets.reveal(session, row.name, "secret", spec["secret"]),
        ca=spec["ca"],
        server=spec["gateway"],
        token=secrets.reveal(session, row.name, "token", spec["token"]),
        rate=spec["rate"],
        start=spec["start"],
        place=spec["place"],
        on_gap=spec["on_gap"],
    )
    return msgspec.json.encode(job) + b"\n"


def pause(session: Session, name: str, actor: Actor, *, paused: bool, dry_run: bool) -> Operation:
    """Pause or resume. Raises `not_found`, `denied`."""
    patch = MergePatch(spec={"paused": paused})
    resources.shown_row(session, KIND, name, actor)
    resources.patch(session, KIND, name, patch, actor, dry_run=dry_run)
    action = "pause" if paused else "resume"
    row = OperationRow(
        id=str(uuid.uuid4()),
        action=action,
        kind=KIND.name,
        name=name,
        state="done",
        dry_run=dry_run,
        cli=f"tidecast mirror {action} {name}",
        finished_at=utc_now(),
        created_by=actor.name,
    )
    session.add(row)
    if not dry_run:
        audit.record(session, actor, action, KIND.name, name, None, None)
    session.flush()
    return Operation.model_validate(row)
