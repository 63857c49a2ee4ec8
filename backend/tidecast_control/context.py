"""The objects of the running service: made by the application's lifespan, handed to routes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from tidecast_control.audit.denials import Denials
from tidecast_control.auth.passwords import Passwords
from tidecast_control.auth.throttle import Throttle
from tidecast_control.db import Database
from tidecast_control.kit.models import utc_now
from tidecast_control.link.hub import Hub
from tidecast_control.live.feed import Feed
from tidecast_control.live.limits import Sockets
from tidecast_control.mirrors.runner import MirrorRunner
from tidecast_control.pipelines.runner import Runner
from tidecast_control.settings import Settings
from tidecast_control.supervisor import Supervisor


@dataclass
class Context:
    """State of one running service."""

    settings: Settings
    db: Database
    hub: Hub
    feed: Feed
    runner: Runner
    mirrors: MirrorRunner
    changed: Callable[[], None] = lambda: None
    """Call after a write: engines are looked after at once, not at the next NOTIFY."""
    throttle: Throttle = field(default_factory=lambda: Throttle(time.monotonic))
    started_at: datetime = field(default_factory=utc_now)
    supervisor: Supervisor = field(default_factory=Supervisor)
    denials: Denials = field(init=False)
    """Refused requests, for the audit."""
    passwords: Passwords = field(default_factory=Passwords)
    sockets: Sockets = field(default_factory=Sockets)
    """Live feeds by user."""

    def __post_init__(self) -> None:
        self.denials = Denials(self.db)
        self.hub.on_refused = self.denials.note
