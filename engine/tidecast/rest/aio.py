"""`tidecast.Control`: the control service's REST API with asyncio; each request is in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tidecast.rest import blocking
from tidecast.rest.http import TIMEOUT_S
from tidecast.rest.types import (
    Applied,
    Key,
    KeyList,
    Kind,
    Operation,
    Plan,
    Resource,
    ResourceList,
    Role,
    Scope,
)


class Resources:
    """Resources of one kind. ``spec``: settings, under the names that REST and YAML use."""

    def __init__(self, resources: blocking.Resources) -> None:
        self._blocking = resources

    async def list(self, *, q: str | None = None, label: str | None = None) -> ResourceList:
        """All of them, by name. ``q``: whose name has this text; ``label``: ``NAME=VALUE``."""
        return await asyncio.to_thread(self._blocking.list, q=q, label=label)

    async def get(self, name: str) -> Resource:
        """One of them. Raises NotFound."""
        return await asyncio.to_thread(self._blocking.get, name)

    async def create(
        self, name: str, *, labels: Mapping[str, str] | None = None, description: str = "",
        **spec: Any,
    ) -> Resource:  # fmt: skip
        """Create one. Raises Conflict (it exists already), ConfigError."""
        return await asyncio.to_thread(
            self._blocking.create, name, labels=labels, description=description, **spec
        )

    async def ensure(
        self, name: str, *, labels: Mapping[str, str] | None = None, description: str = "",
        **spec: Any,
    ) -> Resource:  # fmt: skip
        """The resource, created if it is not there. Of one that is there ``spec`` must hold.

        ``labels``, ``description``: of a new one. Raises Conflict, which names each setting that
        differs, and ConfigError.
        """
        return await asyncio.to_thread(
            self._blocking.ensure, name, labels=labels, description=description, **spec
        )

    async def edit(self, name: str, *, if_match: str | None = None, **changes: Any) -> Resource:
        """Change settings of one; None sets the default.

        ``if_match``: only the version with this `Resource.etag`. Raises NotFound, Conflict,
        ConfigError.
        """
        return await asyncio.to_thread(self._blocking.edit, name, if_match=if_match, **changes)

    async def preview(self, name: str, **changes: Any) -> Plan:
        """What `edit` would change, and with which effect; nothing changes."""
        return await asyncio.to_thread(self._blocking.preview, name, **changes)

    async def delete(
        self, name: str, *, if_unused: bool = False, dry_run: bool = False,
        if_match: str | None = None,
    ) -> Plan:  # fmt: skip
        """Delete one. ``dry_run``: only say what goes with it. Raises NotFound, Conflict."""
        return await asyncio.to_thread(
            self._blocking.delete, name, if_unused=if_unused, dry_run=dry_run, if_match=if_match
        )

    async def pause(self, name: str) -> Operation:
        """Stop deliveries of a topic or subscription, on all engines; records are kept."""
        return await self.operate(name, "pause")

    async def resume(self, name: str) -> Operation:
        """Continue deliveries."""
        return await self.operate(name, "resume")

    async def operate(
        self, name: str, action: str, *, dry_run: bool = False, **request: Any
    ) -> Operation:
        """Have the engines ``pause``, ``resume``, ``seek`` or ``redrive``.

        ``request``: as in the REST API, such as ``at="latest"`` for ``seek``. Raises TidecastError
        when an engine failed, which names the engine.
        """
        return await asyncio.to_thread(
            self._blocking.operate, name, action, dry_run=dry_run, **request
        )


class Keys:
    """API keys: for programs at a gateway, and for this API."""

    def __init__(self, keys: blocking.Keys) -> None:
        self._blocking = keys

    async def list(self) -> KeyList:
        """All of them, revoked ones included; without secrets."""
        return await asyncio.to_thread(self._blocking.list)

    async def get(self, name: str) -> Key:
        """One of them, without its secret. Raises NotFound."""
        return await asyncio.to_thread(self._blocking.get, name)

    async def create(
        self, name: str, *, role: Role = "viewer", scopes: Iterable[Scope] = (),
        description: str = "", expires_s: float | None = None,
    ) -> Key:  # fmt: skip
        """Create a key. Its `Key.secret` is shown this once. Raises Conflict, ConfigError."""
        return await asyncio.to_thread(
            self._blocking.create, name, role=role, scopes=scopes, description=description,
            expires_s=expires_s,
        )  # fmt: skip

    async def revoke(self, name: str) -> Plan:
        """Revoke a key: its sessions end. Raises NotFound."""
        return await asyncio.to_thread(self._blocking.revoke, name)


class Control:
    """A control service, with asyncio. It needs no closing.

    ``url``: None: ``TIDECAST_CONTROL_URL``, or http://127.0.0.1:7480. ``key``: the secret of an API
    key; None: ``TIDECAST_KEY``. ``timeout``: seconds a request may take. ``ca``: a file of
    certificates to trust. Raises ConfigError; calls also AuthError, ConnectionLost, Timeout,
    RateLimited.
    """

    def __init__(
        self, url: str | None = None, *, key: str | None = None, timeout: float = TIMEOUT_S,
        ca: Path | None = None,
    ) -> None:  # fmt: skip
        self._blocking = blocking.Control(url, key=key, timeout=timeout, ca=ca)
        self.topics, self.subscriptions = self.resources("topics"), self.resources("subscriptions")
        self.keys = Keys(self._blocking.keys)

    def resources(self, kind: Kind) -> Resources:
        """Resources of another kind, such as ``"rate-limits"`` or ``"pipelines"``."""
        return Resources(self._blocking.resources(kind))

    async def apply(
        self, documents: Iterable[Mapping[str, Any]] | str, *, dry_run: bool = False,
        managed_by: str = "", prune: bool = False,
    ) -> Applied:  # fmt: skip
        """Create and change many resources: all of it or nothing.

        ``documents``: as mappings, or as a text of YAML. ``prune``: delete what has this
        ``managed_by`` and is left out. Raises ConfigError.
        """
        return await asyncio.to_thread(
            self._blocking.apply, documents, dry_run=dry_run, managed_by=managed_by, prune=prune
        )

    async def request(
        self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None
    ) -> Any:
        """Send any request of the REST API; its answer, decoded. ``path``: under /api/v1."""
        return await asyncio.to_thread(self._blocking.request, method, path, body, query)
