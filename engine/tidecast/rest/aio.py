"""`tidecast.Control`: the control service's REST API with asyncio; each request is in a thread."""

from __future__ import annotations

from pathlib import Path

from tidecast.api.in_thread import in_thread
from tidecast.rest import blocking
from tidecast.rest.http import TIMEOUT_S
from tidecast.rest.types import Kind


class Resources:
    """Resources of one kind. ``spec``: settings, under the names that REST and YAML use."""

    def __init__(self, resources: blocking.Resources) -> None:
        self._blocking = resources

    list = in_thread(blocking.Resources.list)
    get = in_thread(blocking.Resources.get)
    create = in_thread(blocking.Resources.create)
    ensure = in_thread(blocking.Resources.ensure)
    edit = in_thread(blocking.Resources.edit)
    preview = in_thread(blocking.Resources.preview)
    delete = in_thread(blocking.Resources.delete)
    pause = in_thread(blocking.Resources.pause)
    resume = in_thread(blocking.Resources.resume)
    operate = in_thread(blocking.Resources.operate)


class Keys:
    """API keys: for programs at a gateway, and for this API."""

    def __init__(self, keys: blocking.Keys) -> None:
        self._blocking = keys

    list = in_thread(blocking.Keys.list)
    get = in_thread(blocking.Keys.get)
    create = in_thread(blocking.Keys.create)
    revoke = in_thread(blocking.Keys.revoke)


class Control:
    """A control service, with asyncio. It needs no closing.

    ``url``: None: ``TIDECAST_CONTROL_URL``, or http://127.0.0.1:7480. ``key``: the secret of an API
    key; None: ``TIDECAST_KEY``. ``timeout``: seconds a request may take. ``ca``: a file of
    certificates to trust. Raises ConfigError; calls also AuthError, ConnectionLost, Timeout,
    RateLimited.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        timeout: float = TIMEOUT_S,
        ca: Path | None = None,
    ) -> None:
        self._blocking = blocking.Control(url, key=key, timeout=timeout, ca=ca)
        self.topics, self.subscriptions = self.resources("topics"), self.resources("subscriptions")
        self.keys = Keys(self._blocking.keys)

    def resources(self, kind: Kind) -> Resources:
        """Resources of another kind, such as ``"rate-limits"`` or ``"pipelines"``."""
        return Resources(self._blocking.resources(kind))

    apply = in_thread(blocking.Control.apply)
    request = in_thread(blocking.Control.request)
