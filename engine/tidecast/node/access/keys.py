"""The keys that a node knows: keys of the topology file, and keys that the control service sent.

The keys of the service are kept in ``keys.json`` of the data directory, so that clients are checked
while the service is away, also after a restart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from tidecast.access import KEYS_MAX, Access, ClientKey
from tidecast.disk import write_atomically
from tidecast.errors import ConfigError

KEYS_NAME = "keys.json"


class KeyRing:
    """See the module. Thread-safe."""

    def __init__(
        self,
        declared: list[ClientKey],
        path: Path,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._declared, self._path, self._now = declared, path, now
        self._lock = threading.Lock()
        self._by_digest: dict[str, ClientKey] = {}
        if len(declared) > KEYS_MAX:
            raise ConfigError(f"keys: {len(declared)} of them: allowed 0..{KEYS_MAX}")
        received: list[ClientKey] = []
        try:
            received = msgspec.json.decode(path.read_bytes(), type=list[ClientKey])
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as problem:
            raise ConfigError(
                f"{path}: no list of keys: {problem}: remove it, and the control service sends "
                "the keys again"
            ) from None
        self._use(received)

    def __bool__(self) -> bool:
        return bool(self._by_digest)

    def learn(self, raw: list[dict[str, Any]]) -> None:
        """The service's keys, all of them, instead of those before. Raises ConfigError."""
        try:
            received = msgspec.convert(raw, list[ClientKey])
        except msgspec.ValidationError as problem:
            raise ConfigError(f"keys: {problem}") from None
        if len(received) > KEYS_MAX:
            raise ConfigError(f"keys: {len(received)}: at most {KEYS_MAX}")
        self._use(received)
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self._path, msgspec.json.encode(received))

    def _use(self, received: list[ClientKey]) -> None:
        with self._lock:
            self._by_digest = {key.sha256: key for key in (*self._declared, *received)}

    def find(self, digest: str) -> Access | None:
        """The rights of the key with this hash; None: unknown, expired, revoked."""
        key = self._by_digest.get(digest)
        if key is None or key.over(self._now()):
            return None
        return Access(key.id, key.name or key.id, tuple(key.scopes), key.quota)
