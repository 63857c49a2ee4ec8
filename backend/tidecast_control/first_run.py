"""A new platform's first resources: an admin, two transports, pipelines, an example if wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from sqlmodel import Session

from tidecast.config.topology import (
    Topology,
    first_topology,
    load_topology,
    topology_path,
)
from tidecast.errors import ConfigError
from tidecast_control.api import resources
from tidecast_control.auth import accounts
from tidecast_control.auth import service as auth
from tidecast_control.kinds import KINDS
from tidecast_control.kit import repository
from tidecast_control.kit.actor import SERVICE
from tidecast_control.kit.problems import ProblemError
from tidecast_control.pipelines.schemas import PipelineSpec
from tidecast_control.settings import Settings
from tidecast_control.topics.schemas import TopicSpec
from tidecast_control.traffic.schemas import TrafficSpec

EXAMPLE = "example"
RATES = ("rate_packets_per_s", "rate_bytes_per_s")
PIPELINES = (
    (PipelineSpec(job="rollup", schedule="every 10m"), "Telemetry by minute and hour: history."),
    (PipelineSpec(job="capacity", schedule="@daily"), "What rates and sizes topics should have."),
)
"""There on a first run, switched off: they need PySpark."""


@dataclass(frozen=True)
class Secrets:
    """Shown once, stored nowhere."""

    admin_password: str | None


def _topology(settings: Settings) -> Topology:
    """The file that was there before the first start, else a new platform's. Raises ConfigError."""
    path = settings.topology_file or topology_path(settings.data_dir)
    if settings.topology_file is None and not path.exists():
        return first_topology(settings.data_dir)
    return load_topology(path)


def seed(session: Session, topology: Topology) -> None:
    """Take over transports, topics and keys of a topology file. Raises ConfigError."""
    for transport in topology.transports:
        raw = msgspec.to_builtins(transport)
        name = raw.pop("name")
        _ensure(session, "transport", name, raw, {})
    for topic in topology.topics:
        raw = {field: getattr(topic, field) for field in topic.__struct_fields__}
        name = raw.pop("name")
        metadata = {"labels": raw.pop("labels"), "description": raw.pop("description")}
        raw |= {field: raw[field] or None for field in RATES}  # 0 in a file: by policy here
        raw["wire_id"] = raw.pop("id")
        _ensure(session, "topic", name, raw, metadata)
    for key in topology.keys:
        accounts.seed_key(session, key)


def _ensure(
    session: Session, kind: str, name: str, spec: dict[str, Any], metadata: dict[str, Any]
) -> None:
    if repository.find(session, kind, name) is not None:
        return
    try:
        body = resources.built(KINDS[kind].input, {"spec": spec, "metadata": metadata})
        resources.put(session, KINDS[kind], name, body, SERVICE, plan_only=True)
    except ProblemError as problem:
        details = [f"{e.pointer}: {e.detail}" for e in problem.errors] or [problem.detail]
        raise ConfigError(f"topology file: {kind} {name}: {'; '.join(details)}") from None


def prepare(session: Session, settings: Settings) -> Secrets:
    """Create missing resources; nothing on later runs."""
    password = auth.first_run_secret(session)
    if password is not None or repository.count(session, "transport") == 0:
        seed(session, _topology(settings))
    if password is not None:
        for spec, description in PIPELINES:
            resources.ensure(session, KINDS["pipeline"], spec.job, spec, SERVICE, description)
    if settings.example_topic and password is not None:
        resources.ensure(
            session,
            KINDS["topic"],
            EXAMPLE,
            TopicSpec(),
            SERVICE,
            "An example: switch its traffic on and off.",
        )
        resources.ensure(session, KINDS["traffic"], EXAMPLE, TrafficSpec(), SERVICE)
    return Secrets(password)
