"""Pipelines: request and response shapes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from tidecast_control.kit.schemas import (
    Count,
    Int64,
    Model,
    Name,
    Resource,
    ResourceInput,
    Short,
    Signed,
    Status,
    View,
)
from tidecast_control.pipelines.schedule import ALLOWED, parse

Job = Literal["archive", "replay", "rollup", "backfill", "capacity"]
RunState = Literal["queued", "running", "done", "failed", "stopped", "lost"]
TIME = r"^(\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2})?)?Z?)?$"


def _checked_schedule(text: str) -> str:
    if text:
        parse(text)
    return text


When = Annotated[str, Field(max_length=100), AfterValidator(_checked_schedule)]
Directory = Annotated[
    str,
    Field(
        min_length=1,
        max_length=100,
        pattern=r"^[A-Za-z0-9_-]+$",
        description="The name of a directory beside the pipelines' files of the service",
    ),
]
Time = Annotated[str, Field(max_length=40, pattern=TIME, description="ISO 8601, UTC")]


class PipelineSpec(Model):
    """A job and when it runs. Fields of other jobs are left at their defaults."""

    job: Job
    enabled: bool = Field(False, description="Runs by its schedule; it can always run by hand")
    schedule: When = Field("", description=f'{ALLOWED}; "" = only by hand')
    topic: Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9_.*>-]*$")] = Field(
        "", description="archive: topic or pattern; replay: target topic; rollup: telemetry's topic"
    )
    source: Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9_.-]*$")] = Field(
        "", description="replay: the topic that was archived"
    )
    archive: Directory = "archive"
    rollups: Directory = "rollups"
    since: Time = ""
    until: Time = ""
    rate: int = Field(0, ge=0, le=10_000_000, description="replay: rows a second; 0 = no limit")
    hours: int = Field(168, ge=1, le=24 * 366, description="capacity: how far to look back")
    timeout_s: float = Field(3600.0, gt=0, le=7 * 86_400, description="Stopped after this time")


class PipelineRun(View):
    """One run."""

    id: str
    pipeline: str
    job: Job
    trigger: Literal["schedule", "user"]
    requested_by: str = ""
    state: RunState
    queued_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    duration_s: float | None = None
    rows: Int64 | None = Field(None, description="Archived, published or rolled up; topics advised")
    errors: Int64 | None = Field(None, description="Rows left out; 1 when the job failed")
    error: str = ""
    exit_code: Signed | None = None
    cli: str = Field("", description="The same from the shell")
    report: Any = Field(None, description="The job's report of its work")


class PipelineStatus(Status):
    """The state of a pipeline."""

    state: Literal["idle", "queued", "running"] = "idle"
    next_run_at: datetime | None = None
    last_run: PipelineRun | None = None


class Pipeline(Resource[PipelineSpec, PipelineStatus]):
    """A pipeline."""


class PipelineInput(ResourceInput[PipelineSpec]):
    """The desired state of a pipeline."""


class PipelineLog(View):
    """The end of the standard error of a run."""

    run: str
    text: str
    bytes: Int64 = Field(0, description="How much it wrote in all")


class CapacityAdvice(View):
    """A recommendation of the capacity report for a topic. ``spec`` may be applied as it is."""

    topic: Name
    spec: dict[str, Count]
    reasons: list[str]
    peak_messages_per_s: float
    peak_bytes_per_s: float


class Capacity(View):
    """The newest capacity report. ``run`` null: none was made yet."""

    run: str | None = None
    made_at: datetime | None = None
    items: list[CapacityAdvice] = []
    mend: Short = Field("", description="What fixes a missing recommendation")
