"""Which level two ends of a connection speak: one rule for unix socket, gateway, control link.

A hello names the levels that its sender reads. It also names a bare protocol number, that of the
sender's lowest level: older builds compare this number and know nothing else, and a hello of theirs
has nothing else. The answer names the level that both speak from then on.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from tidecast.errors import ConfigError
from tidecast.layout.levels import LEVEL_MAX, LEVELS, LOWEST, NEWEST
from tidecast.version import VERSION

_Level = Annotated[int, msgspec.Meta(ge=1, le=LEVEL_MAX)]
Connection = Literal["socket", "gateway", "control"]
UNSAID = (0, 0)
"""The levels in a hello of a build that knows none."""
FIRST = 1
"""The level of builds that know none."""
BARE: dict[Connection, int] = {"socket": 1, "gateway": 2, "control": 1}
"""The numbers that those builds send and compare."""
QUOTED_MAX = 50
"""Characters of a refused value that a refusal quotes: the value is from the other end."""


class Range(msgspec.Struct, frozen=True):
    """The levels that a build reads, both ends included."""

    low: int
    high: int

    def __contains__(self, level: int) -> bool:
        return self.low <= level <= self.high

    def __str__(self) -> str:
        if self.low == self.high:
            return f"level {self.low}"
        return f"levels {self.low} to {self.high}"


OURS = Range(LOWEST, NEWEST)


def protocol_of(connection: Connection) -> int:
    """The bare number in our hello: that of our lowest level."""
    return int(getattr(LEVELS[OURS.low], connection))


def range_of(connection: Connection, protocol: Any, levels: Any = UNSAID) -> Range:
    """The levels that the sender of a hello reads. Raises ConfigError: that is none."""
    if levels is None or levels == UNSAID:
        if protocol == BARE[connection]:
            return Range(FIRST, FIRST)
        raise ConfigError(
            f"protocol: {protocol!r:.{QUOTED_MAX}} on the {connection}: of builds that name no "
            f"levels, tidecast {VERSION} knows {BARE[connection]}: the two ends do not "
            "speak the same protocol: install the same version of tidecast for both"
        )
    try:
        found = msgspec.convert(levels, tuple[_Level, _Level])
    except msgspec.ValidationError as problem:
        raise ConfigError(f"levels: {levels!r:.{QUOTED_MAX}}: {problem}") from None
    if found[0] > found[1]:
        raise ConfigError(f"levels: {list(found)}: the lowest comes first")
    return Range(*found)


def agreed(peer: str, version: str, theirs: Range, here: str) -> int:
    """The highest level that both ends read. Raises ConfigError: there is none.

    ``peer``, ``here``: the two ends, such as "client" and "engine".
    """
    level = min(theirs.high, OURS.high)
    if level in theirs and level in OURS:
        return level
    raise ConfigError(_refusal(peer, version, theirs, here))


def check_welcome(level: int, peer: str, version: str) -> None:
    """The client reads the level that the other end chose. Raises ConfigError."""
    if level not in OURS:
        raise ConfigError(_refusal(peer, version, Range(level, level), "client"))


def check_level(level: int) -> None:
    """This build reads and writes a cluster's level. Raises ConfigError."""
    if level not in OURS:
        raise ConfigError(
            f"level: {level}: tidecast {VERSION} reads {OURS}: install a version that reads level "
            f"{level}"
        )


def check_rings(version: str, theirs: Range, cluster: int) -> None:
    """A client of this host reads the rings that its engine writes at the cluster's level.

    Raises ConfigError: their format came with a level that the client does not read.
    """
    newest = LEVELS[min(theirs.high, OURS.high)]
    if cluster > theirs.high and LEVELS[cluster].ring != newest.ring:
        raise ConfigError(
            f"client {version} reads {theirs}, the rings of this engine are of level {cluster}: "
            f"upgrade the client to >= {LEVELS[cluster].since}"
        )


def _refusal(peer: str, version: str, theirs: Range, here: str) -> str:
    """Both ranges, and which end to upgrade to which version."""
    if theirs.low > OURS.high:
        least = f">= {version}" if version else f"a version that reads level {theirs.low}"
        cure = f"upgrade the {here} to {least}"
    else:
        cure = f"upgrade the {peer} to >= {LEVELS[OURS.low].since}"
    about = f"{peer} {version}" if version else f"the {peer}"
    return (
        f"{about} reads {theirs}, {here} {VERSION} reads {OURS}: they do not speak the same "
        f"protocol: {cure}"
    )
