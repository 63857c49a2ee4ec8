"""How much the clients of one key may hold at a gateway: publications, consumers, ring memory.

Rings lie in shared memory, which all clients of the host share: without a limit by key, a key with
a right on one topic could fill it, and the rings of all others would fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tidecast.access import Access
from tidecast.errors import Conflict

FIELDS = ("publications", "consumers", "ring_bytes")


class Quotas:
    """Resources of sessions, by key. In the gateway's loop alone."""

    def __init__(self, refused: Callable[[Access, str], None]) -> None:
        """``refused(access, field)``: counts and reports a request beyond that quota."""
        self._refused = refused
        self._held: dict[str, dict[str, Counter[str]]] = {}

    def take(self, access: Access, session: str, **wanted: int) -> None:
        """Hold more for a session. Raises Conflict, and holds nothing of it, beyond the quota."""
        assert wanted.keys() <= set(FIELDS)
        of_key = self._held.setdefault(access.id, {})
        for what, n in wanted.items():
            most = getattr(access.quota, what) if access.quota is not None else None
            held = sum(each[what] for each in of_key.values())
            if most is not None and held + n > most:
                self._refused(access, what)
                raise Conflict(
                    f"{what}: {held} held by the clients of key {access.name}, {n} asked for: "
                    f"allowed {most} for the key: close some, or raise quota.{what} of the key"
                )
        of_key.setdefault(session, Counter()).update(wanted)

    def give(self, access: Access, session: str, **back: int) -> None:
        """A session holds less."""
        held = self._held.get(access.id, {}).get(session)
        if held is not None:
            held.subtract(back)

    def forget(self, access: Access, session: str) -> None:
        """A session ended."""
        of_key = self._held.get(access.id, {})
        of_key.pop(session, None)
        if not of_key:
            self._held.pop(access.id, None)

    def held(self, key: str) -> dict[str, int]:
        """The resources that the clients of a key hold."""
        found = self._held.get(key, {}).values()
        return {what: sum(each[what] for each in found) for what in FIELDS}
