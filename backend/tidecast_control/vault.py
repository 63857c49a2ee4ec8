"""Secrets in the database: sealed with a key that lies beside it, in a file.

A dump, a backup or a replica of the database then gives no secret away. `Vault.seal` binds a secret
to its place: in another row it cannot be opened. A file of keys has one of 64 hex digits on each
line; the first seals, all open. So a new line on top and a restart replace a key.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import secrets
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlmodel import Session

from tidecast.disk import sync_directory, write_atomically
from tidecast.errors import ConfigError

FILE_NAME = "secrets.key"
KEY_BYTES, NONCE_BYTES, KEYS_MAX = 32, 12, 16
_PREFIX = "sealed1:"


class Unopened(ValueError):
    """A secret that none of the keys opens, or that does not belong to its place."""


class Vault:
    """Seals and opens secrets with keys of 32 bytes. Thread-safe.

    ``keys``: the first one seals, all open. ``origin``: their file, for errors.
    """

    def __init__(self, keys: Sequence[bytes], origin: Path | str = FILE_NAME) -> None:
        if not keys:
            raise ConfigError(f"{origin}: it has no key: allowed are 1 to {KEYS_MAX}")
        self._origin = origin
        self._ciphers = {_name_of(key): AESGCM(key) for key in keys}
        self._first = _name_of(keys[0])

    def seal(self, secret: str, place: str) -> str:
        """The secret as text for the database. ``place``: the row and column that it is for."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = self._ciphers[self._first].encrypt(nonce, secret.encode(), place.encode())
        return f"{_PREFIX}{self._first}:{base64.b64encode(nonce + sealed).decode()}"

    def open(self, text: str, place: str) -> str:
        """The secret behind a text of the database. One of before there was a vault is itself.

        Raises Unopened.
        """
        if not text.startswith(_PREFIX):
            return text
        name, _, body = text.removeprefix(_PREFIX).partition(":")
        cipher = self._ciphers.get(name)
        if cipher is None:
            raise Unopened(
                f"{self._origin}: it lacks the key {name}, which sealed {place}: add the key on a "
                "line of its own, or start once with --forget-secrets, which gives such secrets up"
            )
        try:
            raw = base64.b64decode(body, validate=True)
            return cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], place.encode()).decode()
        except (InvalidTag, ValueError):
            raise Unopened(
                f"{place}: it is damaged, or was sealed for another place: start once with "
                "--forget-secrets, which gives such secrets up"
            ) from None

    def renew(self, text: str, place: str) -> str:
        """The text, sealed again unless the first key sealed it. Raises Unopened."""
        secret = self.open(text, place)
        return text if text.startswith(f"{_PREFIX}{self._first}:") else self.seal(secret, place)


def load_vault(path: Path) -> Vault:
    """The vault with the keys of a file, which is made if it is not there. Raises ConfigError."""
    try:
        if not path.exists():
            _make(path)
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise ConfigError(
                f"{path}: mode {mode:o}: others may read it; allowed is 600: chmod 600 {path}"
            )
        lines = path.read_text("ascii").split()
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path}: it cannot be read: {problem}") from None
    if len(lines) > KEYS_MAX:
        raise ConfigError(f"{path}: {len(lines)} keys: allowed are 1 to {KEYS_MAX}")
    return Vault([_key(path, n, line) for n, line in enumerate(lines, 1)], path)


def _make(path: Path) -> None:
    """Make the file, unless another service is quicker: then its key is the key of both."""
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    write_atomically(fresh, secrets.token_hex(KEY_BYTES).encode() + b"\n")
    try:
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(fresh)
    finally:
        fresh.unlink()
    sync_directory(path.parent)


def _key(path: Path, number: int, line: str) -> bytes:
    try:
        key = bytes.fromhex(line)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:  # the line itself may be a key: it is not shown
        raise ConfigError(f"{path}: line {number}: allowed are {2 * KEY_BYTES} hex digits")
    return key


def _name_of(key: bytes) -> str:
    """Which key it is, without saying anything of it."""
    return hashlib.sha256(b"tidecast vault" + key).hexdigest()[:12]


def vault_of(session: Session) -> Vault:
    """The vault of the service that a session belongs to."""
    found: Vault = session.info["vault"]
    return found


Row = TypeVar("Row")


def renew_rows(
    session: Session,
    rows: Iterable[Row],
    places: Callable[[Row], Mapping[str, str]],
    *,
    forget: bool,
) -> list[Row]:
    """Seal the secrets of rows with the vault's first key. ``places``: of a row, field -> place.

    Raises Unopened for a secret that no key opens; with ``forget`` returns the rows that have such
    secrets, unchanged.
    """
    vault = vault_of(session)
    lost = []
    for row in rows:
        try:
            renewed = {
                field: vault.renew(getattr(row, field), place)
                for field, place in places(row).items()
            }
        except Unopened:
            if not forget:
                raise
            lost.append(row)
            continue
        for field, text in renewed.items():
            setattr(row, field, text)
        session.add(row)
    return lost
