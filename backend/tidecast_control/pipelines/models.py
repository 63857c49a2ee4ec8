"""Runs of pipelines."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column, Index, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from tidecast_control.kit.models import time_column, utc_now


class PipelineRunRow(SQLModel, table=True):
    """A run. ``pid`` and ``pid_start``: of its process, so that no other process is ever killed.

    ``held_until``: until then the service that has the process is assumed to run. ``ending``: a
    user has asked to end the run.
    """

    __tablename__ = "pipeline_runs"
    __table_args__ = (
        Index("ix_pipeline_runs_pipeline_queued_at", "pipeline", "queued_at"),
        Index(
            "ix_pipeline_runs_open",
            "pipeline",
            unique=True,
            postgresql_where=text("state IN ('queued', 'running')"),
        ),
    )

    id: str = Field(primary_key=True, max_length=36)
    pipeline: str = Field(max_length=200)
    job: str
    trigger: str
    requested_by: str = ""
    state: str = "queued"
    spec: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSONB, nullable=False))
    cli: str = ""
    queued_at: datetime = Field(default_factory=utc_now, sa_column=time_column())
    started_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    finished_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    pid: int | None = None
    pid_start: int | None = Field(default=None, sa_type=BigInteger)
    held_until: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    ending: bool = False
    exit_code: int | None = None
    rows: int | None = Field(default=None, sa_type=BigInteger)
    errors: int | None = Field(default=None, sa_type=BigInteger)
    error: str = ""
    report: Any = Field(default=None, sa_column=Column(JSONB(none_as_null=True)))


class PipelineLogRow(SQLModel, table=True):
    """The end of a run's standard error."""

    __tablename__ = "pipeline_logs"

    run: str = Field(primary_key=True, max_length=36)
    text: str = Field(default="", sa_column=Column(Text, nullable=False))
    bytes: int = Field(default=0, sa_type=BigInteger)
