"""One API: its key, the versions that are served, and the fields of its requests and answers."""

from __future__ import annotations

from dataclasses import dataclass

from tidecast.kafka.wire import Field, parse

NEVER = 1 << 15
"""The first flexible version of an API that has none."""


@dataclass(frozen=True)
class Api:
    """One API: its key, the versions served, the first flexible one, and its fields."""

    key: int
    name: str
    first: int
    last: int
    flexible: int
    request: tuple[Field, ...]
    answer: tuple[Field, ...]

    def serves(self, version: int) -> bool:
        """Whether the version is advertised."""
        return self.first <= version <= self.last

    def is_flexible(self, version: int) -> bool:
        """The version has compact lengths and tagged fields."""
        return version >= self.flexible


def api(
    key: int, name: str, versions: tuple[int, int], flexible: int, request: str, answer: str
) -> Api:
    """An API whose fields are written as `tidecast.kafka.wire` describes."""
    return Api(key, name, *versions, flexible, parse(request), parse(answer))
