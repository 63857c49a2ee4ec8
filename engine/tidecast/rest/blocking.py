"""`tidecast.sync.Control`: the control service's REST API, one request a call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from tidecast.errors import Conflict, NotFound, TidecastError
from tidecast.rest.http import TIMEOUT_S, Answer, Service
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

_PAGE_ROWS = 200
_MERGE = "application/merge-patch+json"


class Resources:
    """Resources of one kind. ``spec``: settings, under the names that REST and YAML use."""

    def __init__(self, service: Service, kind: Kind) -> None:
        self._service, self._kind = service, kind

    def list(self, *, q: str | None = None, label: str | None = None) -> ResourceList:
        """All of them, by name. ``q``: whose name has this text; ``label``: ``NAME=VALUE``."""
        rows = _all_rows(self._service, f"/{self._kind}", {"q": q, "label": label})
        return msgspec.convert(rows, ResourceList)

    def get(self, name: str) -> Resource:
        """A resource of the kind. Raises NotFound."""
        return _resource(self._service.send("GET", self._path(name)))

    def create(
        self,
        /,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        description: str = "",
        **spec: Any,
    ) -> Resource:
        """Create one. Raises Conflict (it exists already), ConfigError."""
        metadata = {"labels": dict(labels or {}), "description": description}
        return _resource(
            self._service.send(
                "PUT",
                self._path(name),
                _json({"metadata": metadata, "spec": spec}),
                headers={"If-None-Match": "*"},
            )
        )

    def ensure(
        self,
        /,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        description: str = "",
        **spec: Any,
    ) -> Resource:
        """The resource, created if it does not exist. An existing resource must have ``spec``.

        ``labels``, ``description``: of a new one. Raises Conflict, which names each setting that
        differs, and ConfigError.
        """
        try:
            return self.create(name, labels=labels, description=description, **spec)
        except Conflict as conflict:
            try:
                found = self.get(name)
            except NotFound:
                raise conflict from None  # it conflicts with another resource
        differing = [
            f"{field} is {found.spec.get(field)!r}, not {value!r}"
            for field, value in spec.items()
            if found.spec.get(field) != value
        ]
        if differing:
            raise Conflict(
                f"{self._kind}: {name}: it has other settings: {', '.join(differing)}: leave them "
                "out, or change it with edit()"
            )
        return found

    def edit(self, /, name: str, *, if_match: str | None = None, **changes: Any) -> Resource:
        """Change settings of one; None sets the default.

        ``if_match``: only the version with this `Resource.etag`. Raises NotFound, Conflict,
        ConfigError.
        """
        return _resource(self._patch(name, changes, if_match))

    def preview(self, /, name: str, **changes: Any) -> Plan:
        """The changes that `edit` would make, and their effects; nothing changes."""
        return _plan(self._patch(name, changes, None, dry_run=True))

    def delete(
        self,
        name: str,
        *,
        if_unused: bool = False,
        dry_run: bool = False,
        if_match: str | None = None,
    ) -> Plan:
        """Delete one. ``dry_run``: only list the deletions. Raises NotFound, Conflict."""
        query = {"if_unused": if_unused, "dry_run": dry_run}
        return _plan(
            self._service.send("DELETE", self._path(name), query=query, headers=_only_if(if_match))
        )

    def pause(self, name: str) -> Operation:
        """Stop deliveries of a topic or subscription, on all engines; records are kept."""
        return self.operate(name, "pause")

    def resume(self, name: str) -> Operation:
        """Continue deliveries."""
        return self.operate(name, "resume")

    def operate(
        self, /, name: str, action: str, *, dry_run: bool = False, **request: Any
    ) -> Operation:
        """Have the engines ``pause``, ``resume``, ``seek`` or ``redrive``.

        ``request``: as in the REST API, such as ``at="latest"`` for ``seek``. Raises TidecastError
        when an engine failed, which names the engine.
        """
        body = _json(request) if request else None
        answer = self._service.send(
            "POST", f"{self._path(name)}/{action}", body, query={"dry_run": dry_run or None}
        )
        done = msgspec.json.decode(answer.body, type=Operation)
        if done.state != "done":
            results = json.dumps(done.results)
            raise TidecastError(f"{action} of {self._kind} {name}: {done.state}: {results}")
        return done

    def _patch(
        self, name: str, changes: dict[str, Any], if_match: str | None, *, dry_run: bool = False
    ) -> Answer:
        body = json.dumps({"spec": changes}).encode(), _MERGE
        return self._service.send(
            "PATCH", self._path(name), body, {"dry_run": dry_run or None}, _only_if(if_match)
        )

    def _path(self, name: str) -> str:
        return f"/{self._kind}/{quote(name, safe='')}"


class Keys:
    """API keys: for programs at a gateway, and for this API."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def list(self) -> KeyList:
        """All keys, revoked keys included; without secrets."""
        return msgspec.convert(_all_rows(self._service, "/keys", {}), KeyList)

    def get(self, name: str) -> Key:
        """A key, without its secret. Raises NotFound."""
        answer = self._service.send("GET", f"/keys/{quote(name, safe='')}")
        return msgspec.json.decode(answer.body, type=Key)

    def create(
        self,
        name: str,
        *,
        role: Role = "viewer",
        scopes: Iterable[Scope] = (),
        description: str = "",
        expires_s: float | None = None,
    ) -> Key:
        """Create a key. Its `Key.secret` is shown this once. Raises Conflict, ConfigError."""
        body = {
            "name": name,
            "role": role,
            "scopes": msgspec.to_builtins(list(scopes)),
            "description": description,
            "expires_s": expires_s,
        }
        answer = self._service.send("POST", "/keys", _json(body))
        return msgspec.json.decode(answer.body, type=Key)

    def revoke(self, name: str) -> Plan:
        """Revoke a key: its sessions end. Raises NotFound."""
        return _plan(self._service.send("DELETE", f"/keys/{quote(name, safe='')}"))


class Control:
    """A control service. Safe from any thread; it needs no closing.

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
        self._service = Service(url, key, timeout, ca)
        self.topics = self.resources("topics")
        self.subscriptions = self.resources("subscriptions")
        self.keys = Keys(self._service)

    def resources(self, kind: Kind) -> Resources:
        """Resources of another kind, such as ``"rate-limits"`` or ``"pipelines"``."""
        return Resources(self._service, kind)

    def apply(
        self,
        documents: Iterable[Mapping[str, Any]] | str,
        *,
        dry_run: bool = False,
        managed_by: str = "",
        prune: bool = False,
    ) -> Applied:
        """Create and change many resources: all of it or nothing.

        ``documents``: as mappings, or as a text of YAML. ``prune``: delete resources that have
        this ``managed_by`` and are left out. Raises ConfigError.
        """
        if isinstance(documents, str):
            body = documents.encode(), "application/yaml"
        else:
            body = _json({"documents": [dict(each) for each in documents]})
        query = {"dry_run": dry_run, "managed_by": managed_by or None, "prune": prune}
        answer = self._service.send("POST", "/apply", body, query)
        return msgspec.json.decode(answer.body, type=Applied)

    def request(
        self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None
    ) -> Any:
        """Send any request of the REST API; its answer, decoded. ``path``: under /api/v1."""
        answer = self._service.send(method, path, None if body is None else _json(body), query)
        return json.loads(answer.body) if answer.body else None


def _all_rows(service: Service, path: str, query: dict[str, Any]) -> list[Any]:
    rows: list[Any] = []
    cursor: str | None = None
    while True:
        answer = service.send("GET", path, query=query | {"limit": _PAGE_ROWS, "cursor": cursor})
        page = json.loads(answer.body)
        rows += page["items"]
        cursor = page.get("next_cursor")
        if cursor is None:
            return rows


def _json(body: Any) -> tuple[bytes, str]:
    return json.dumps(body).encode(), "application/json"


def _only_if(etag: str | None) -> dict[str, str]:
    return {} if etag is None else {"If-Match": etag}


def _resource(answer: Answer) -> Resource:
    found = msgspec.json.decode(answer.body, type=Resource)
    return msgspec.structs.replace(found, etag=answer.etag)


def _plan(answer: Answer) -> Plan:
    return msgspec.json.decode(answer.body, type=Plan)
