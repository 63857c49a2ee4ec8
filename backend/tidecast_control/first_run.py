"""What a new platform starts with: an admin, two transports, pipelines, an example if wanted."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from sqlmodel import Session

from tidecast.config.topology import default_topology
from tidecast_control.auth import service as auth
from tidecast_control.kinds import KINDS
from tidecast_control.kit import repository, resources
from tidecast_control.kit.actor import SERVICE
from tidecast_control.pipelines.schemas import PipelineSpec
from tidecast_control.settings import Settings
from tidecast_control.topics.schemas import TopicSpec
from tidecast_control.traffic.schemas import TrafficSpec
from tidecast_control.transports.schemas import TransportSpec

EXAMPLE = "example"
PIPELINES = (
    (PipelineSpec(job="rollup", schedule="every 10m"), "Telemetry by minute and hour: history."),
    (PipelineSpec(job="capacity", schedule="@daily"), "What rates and sizes topics should have."),
)
"""There on a first run, switched off: they need PySpark."""


@dataclass(frozen=True)
class Secrets:
    """Shown once, stored nowhere."""

    admin_password: str | None


def prepare(session: Session, settings: Settings) -> Secrets:
    """Make what is missing; nothing on later runs."""
    password = auth.first_run_secret(session)
    if password is not None or repository.count(session, "transport") == 0:
        for transport in default_topology().transports:
            raw = msgspec.to_builtins(transport)
            name = raw.pop("name")
            resources.ensure(
                session, KINDS["transport"], name, TransportSpec.model_validate(raw), SERVICE
            )
    if password is not None:
        for spec, description in PIPELINES:
            resources.ensure(session, KINDS["pipeline"], spec.job, spec, SERVICE, description)
    if settings.example_topic and password is not None:
        resources.ensure(
            session, KINDS["topic"], EXAMPLE, TopicSpec(), SERVICE,
            "An example: switch its traffic on and off.",
        )  # fmt: skip
        resources.ensure(session, KINDS["traffic"], EXAMPLE, TrafficSpec(), SERVICE)
    return Secrets(password)
