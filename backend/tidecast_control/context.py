"""What the running service holds: made by the application's lifespan, handed to routes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from tidecast_control.auth.throttle import Throttle
from tidecast_control.db import Database
from tidecast_control.kit.models import utc_now
from tidecast_control.link.hub import Hub
from tidecast_control.live.feed import Feed
from tidecast_control.pipelines.runner import Runner
from tidecast_control.settings import Settings

log = logging.getLogger("tidecast.control")


@dataclass
class Context:
    """State of one running service."""

    settings: Settings
    db: Database
    hub: Hub
    feed: Feed
    runner: Runner
    changed: Callable[[], None] = lambda: None
    """Call after a write: engines are looked after at once, not at the next NOTIFY."""
    throttle: Throttle = field(default_factory=lambda: Throttle(time.monotonic))
    started_at: datetime = field(default_factory=utc_now)
    writer: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="audit")
    )

    def audit_later(self, row: Any) -> None:
        """Store a denial in a transaction of its own, off the request's path."""
        self.writer.submit(self._store, row)

    def _store(self, row: Any) -> None:
        try:
            with self.db.begin() as session:
                session.add(row)
        except SQLAlchemyError as problem:
            log.warning("a denial could not be audited: %s", problem)
