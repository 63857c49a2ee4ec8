"""`wire-keys.json`: the secrets of sealed transports, for nodes without a control service.

All nodes of a transport have the same file. Each transport has epochs, numbered from 1, each with a
secret of 32 random bytes. A new epoch is known before it is used: senders take it at
``activate_at``, receivers from the moment that they have it until ``retire_at``. So the file can be
copied to all nodes between `rotate` and the activation, and no packet is lost.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from tidecast.disk import write_atomically
from tidecast.errors import ConfigError, Conflict, NotFound

FILE_NAME = "wire-keys.json"
SECRET_BYTES = 32
EPOCHS_KEPT_MAX = 2
"""A transport has the epoch in use and the next or the last one; receivers take no third."""
TRANSPORTS_MAX = 64
FILE_BYTES_MAX = 1 << 20
ACTIVATE_AFTER_S, RETIRE_AFTER_S = 600.0, 600.0
_HEX = re.compile(rf"[0-9a-f]{{{2 * SECRET_BYTES}}}")


class WireEpoch(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One secret of a transport. Times are ns since 1970; ``retire_at_ns`` 0: not planned."""

    epoch: Annotated[int, Meta(ge=1, le=(1 << 32) - 1)]
    secret_hex: str
    activate_at_ns: Annotated[int, Meta(ge=0)]
    retire_at_ns: Annotated[int, Meta(ge=0)] = 0

    @property
    def secret(self) -> bytes:
        """The 32 bytes."""
        return bytes.fromhex(self.secret_hex)

    def __repr__(self) -> str:
        return f"WireEpoch(epoch={self.epoch}, activate_at_ns={self.activate_at_ns})"


class WireKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The epochs of each transport, oldest first."""

    transports: dict[str, list[WireEpoch]] = {}

    def accepted(self, transport: str, now_ns: int) -> list[WireEpoch]:
        """Epochs whose packets receivers take now, oldest first."""
        return [
            each
            for each in self.transports.get(transport, [])
            if each.retire_at_ns == 0 or now_ns < each.retire_at_ns
        ]

    def active(self, transport: str, now_ns: int) -> WireEpoch:
        """The epoch that senders use now. Raises NotFound when there is none."""
        begun = [e for e in self.accepted(transport, now_ns) if e.activate_at_ns <= now_ns]
        if not begun:
            raise NotFound(f"transport {transport}: {FILE_NAME} has no epoch that is active")
        return begun[-1]

    def with_new(
        self,
        transport: str,
        now_ns: int,
        make: Callable[[int], bytes] = secrets.token_bytes,
        *,
        activate_after_s: float = 0.0,
    ) -> WireKeys:
        """With a first epoch of a transport, active in ``activate_after_s``.

        Raises Conflict when it has some, ConfigError for a time out of range.
        """
        _check_s("activate_after_s", activate_after_s)
        if self.accepted(transport, now_ns):
            raise Conflict(f"transport {transport} has keys: rotate them")
        last = max((e.epoch for e in self.transports.get(transport, [])), default=0)
        activate_at_ns = now_ns + int(activate_after_s * 1e9)
        return self._with(transport, [_epoch(last + 1, activate_at_ns, make)])

    def rotated(
        self,
        transport: str,
        now_ns: int,
        *,
        activate_after_s: float = ACTIVATE_AFTER_S,
        retire_after_s: float = RETIRE_AFTER_S,
        make: Callable[[int], bytes] = secrets.token_bytes,
    ) -> WireKeys:
        """With the next epoch, active in ``activate_after_s``; the one before it ends after that.

        Raises NotFound without an epoch, Conflict while the rotation before this one lasts.
        """
        for name, given in (
            ("activate_after_s", activate_after_s),
            ("retire_after_s", retire_after_s),
        ):
            _check_s(name, given)
        last = self.active(transport, now_ns)
        if len(self.accepted(transport, now_ns)) >= EPOCHS_KEPT_MAX:
            raise Conflict(f"transport {transport}: a rotation is under way: wait until it is over")
        activate_at_ns = now_ns + int(activate_after_s * 1e9)
        last = msgspec.structs.replace(
            last, retire_at_ns=activate_at_ns + int(retire_after_s * 1e9)
        )
        return self._with(transport, [last, _epoch(last.epoch + 1, activate_at_ns, make)])

    def without_retired(self, now_ns: int) -> WireKeys:
        """Without secrets that are over: packets under them cannot be read from then on.

        The newest epoch of a transport stays, so that numbers are not used again.
        """
        return WireKeys(
            transports={
                name: self.accepted(name, now_ns) or epochs[-1:]
                for name, epochs in self.transports.items()
            }
        )

    def _with(self, transport: str, epochs: list[WireEpoch]) -> WireKeys:
        return WireKeys(transports={**self.transports, transport: epochs})


def _check_s(name: str, given: float) -> None:
    if not 0 <= given <= 30 * 86400:
        raise ConfigError(f"{name}: {given}: allowed are 0 to {30 * 86400}")


def _epoch(number: int, activate_at_ns: int, make: Callable[[int], bytes]) -> WireEpoch:
    return WireEpoch(
        epoch=number, secret_hex=make(SECRET_BYTES).hex(), activate_at_ns=activate_at_ns
    )


def load_wire_keys(path: Path) -> WireKeys:
    """The file's content, checked. Raises NotFound without a file, ConfigError for wrong content.

    No error shows a secret.
    """
    try:
        with path.open("rb") as file:
            # Of the open file: the name could lead to another one a moment later.
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise NotFound(f"{path}: there is no such file") from None
    except OSError as problem:
        raise ConfigError(f"{path}: cannot be read: {problem.strerror}") from None
    if mode & 0o077:
        raise ConfigError(f"{path}: others may read it: chmod 600 {path}")
    if len(raw) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: larger than {FILE_BYTES_MAX} bytes")
    try:
        keys = msgspec.json.decode(raw, type=WireKeys)
    except msgspec.ValidationError as problem:
        raise ConfigError(f"{path}: {problem}") from None
    except msgspec.DecodeError:
        raise ConfigError(f"{path}: this is no JSON") from None
    check_wire_keys(keys, str(path))
    return keys


def check_wire_keys(keys: WireKeys, source: str) -> None:
    """Raise ConfigError with all that is wrong; no secret is in it."""
    problems = [f"{source}: {each}" for each in _problems(keys)]
    if problems:
        raise ConfigError("; ".join(problems), problems)


def save_wire_keys(keys: WireKeys, path: Path) -> None:
    """Write atomically, mode 0600. Raises ConfigError."""
    try:
        write_atomically(path, msgspec.json.format(msgspec.json.encode(keys)) + b"\n")
    except OSError as problem:
        raise ConfigError(f"{path}: cannot be written: {problem.strerror}") from None


def _problems(keys: WireKeys) -> list[str]:
    found = []
    if len(keys.transports) > TRANSPORTS_MAX:
        found.append(f"transports: {len(keys.transports)}: allowed are {TRANSPORTS_MAX} at most")
    for name, epochs in keys.transports.items():
        place = f"transports.{name}"
        if not 1 <= len(epochs) <= EPOCHS_KEPT_MAX:
            found.append(f"{place}: {len(epochs)} epochs: allowed are 1 to {EPOCHS_KEPT_MAX}")
        for before, after in itertools.pairwise(epochs):
            if after.epoch <= before.epoch or after.activate_at_ns < before.activate_at_ns:
                found.append(f"{place}: epoch {after.epoch} does not follow epoch {before.epoch}")
            if 0 < before.retire_at_ns < after.activate_at_ns:
                found.append(
                    f"{place}: epoch {before.epoch}: retire_at_ns: {before.retire_at_ns}: allowed "
                    f"are 0, and {after.activate_at_ns} (epoch {after.epoch} is active) or later"
                )
        seen: dict[str, int] = {}
        for each in epochs:
            if not _HEX.fullmatch(each.secret_hex):
                found.append(
                    f"{place}: epoch {each.epoch}: secret_hex: allowed are exactly "
                    f"{2 * SECRET_BYTES} hex digits, lower case"
                )
            elif each.secret_hex in seen:
                found.append(
                    f"{place}: epochs {seen[each.secret_hex]} and {each.epoch} have one secret: "
                    "make a new one"
                )
            seen[each.secret_hex] = each.epoch
    return found
