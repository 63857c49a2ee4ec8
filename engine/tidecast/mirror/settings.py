"""The settings of a mirror that runs as a process of its own. Light to import."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
"""The names of mirrors."""


class Job(msgspec.Struct, kw_only=True, frozen=True):
    """A mirror.

    ``kafka``: settings of `KafkaSource`; ``jetstream``: of `JetStreamSource`, for a mirror from
    there; ``secret``: of the user; ``ca``: in PEM.
    ``server``: a gateway for the durable topic, with the key ``token``; "": ``data_dir``.
    """

    name: str
    direction: Literal["from_kafka", "to_kafka", "from_jetstream"]
    topic: str
    data_dir: str
    kafka: dict[str, Any] = {}
    jetstream: dict[str, Any] = {}
    secret: str = ""
    ca: str = ""
    server: str = ""
    token: str = ""
    rate: int = 0
    start: Literal["earliest", "latest"] = "earliest"
    place: Literal["auto", "queue", "key"] = "auto"
    on_gap: Literal["report", "stop"] = "report"
