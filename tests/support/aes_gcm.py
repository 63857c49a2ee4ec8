"""AES-GCM for tests: kernels that seal and open `bytes`, and vectors of NIST and Wycheproof."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidecast.native.crypto.aes_gcm import BYTES_MAX, DONE, TAG_BYTES, open_sealed, seal
from tidecast.native.crypto.libcrypto import (
    SUITE_AES_128_GCM,
    SUITE_AES_256_GCM,
    Key,
    Libcrypto,
    find_libcrypto,
)
from tidecast.native.jit import kernel
from tidecast.native.memory import Span

VECTORS = Path(__file__).with_name("aes_gcm_vectors.json")
CANARY = 0xA5


@dataclass(frozen=True)
class Vector:
    """One case. ``valid``: whether the tag fits."""

    name: str
    key: bytes
    nonce: bytes
    header: bytes
    text: bytes
    sealed: bytes
    valid: bool


def vectors() -> list[Vector]:
    """Those of the file."""
    return [
        Vector(
            each["name"],
            bytes.fromhex(each["key"]),
            bytes.fromhex(each["nonce"]),
            bytes.fromhex(each["header"]),
            bytes.fromhex(each["text"]),
            bytes.fromhex(each["sealed"]),
            each["valid"],
        )
        for each in json.loads(VECTORS.read_text())["vectors"]
    ]


def suite_of(secret: bytes) -> int:
    """The suite of a key's length."""
    return SUITE_AES_128_GCM if len(secret) == 16 else SUITE_AES_256_GCM


@kernel
def seal_bytes(evp, context, nonce, header, header_n, source, n, target, at, scratch):  # type: ignore[no-untyped-def]
    text = Span(source, 0, n)
    return seal(evp, context, nonce, Span(header, 0, header_n), text, target, at, scratch)


@kernel
def open_bytes(evp, context, nonce, header, header_n, source, n, target, at, scratch):  # type: ignore[no-untyped-def]
    text = Span(source, 0, n)
    return open_sealed(evp, context, nonce, Span(header, 0, header_n), text, target, at, scratch)


def array(raw: bytes, room: int = 8) -> np.ndarray:
    """A byte array that may be empty, with room behind it."""
    return np.frombuffer(raw + bytes(room), dtype=np.uint8).copy()


class Cipher:
    """Seals and opens under one key, in kernels."""

    def __init__(self, secret: bytes, library: Libcrypto | None = None) -> None:
        library = library or find_libcrypto()
        self._evp = library.functions
        self._keys: list[Key] = [
            library.key(suite_of(secret), secret, opens=opens) for opens in (False, True)
        ]
        self._scratch = np.zeros(16, dtype=np.uint8)

    def seal(self, nonce: bytes, header: bytes, text: bytes) -> bytes:
        """Ciphertext and tag. What lies around the target must stay as it was."""
        target = np.full(len(text) + TAG_BYTES + 16, CANARY, dtype=np.uint8)
        outcome = seal_bytes(
            self._evp,
            self._keys[0].context,
            array(nonce),
            array(header),
            len(header),
            array(text),
            len(text),
            target,
            8,
            self._scratch,
        )
        assert outcome == DONE
        assert set(target[:8]) | set(target[-8:]) == {CANARY}
        return target[8:-8].tobytes()

    def open(self, nonce: bytes, header: bytes, sealed: bytes) -> tuple[int, bytes]:
        """The outcome and the text."""
        n = len(sealed) - TAG_BYTES
        target = np.full(n + 16, CANARY, dtype=np.uint8)
        outcome = open_bytes(
            self._evp,
            self._keys[1].context,
            array(nonce),
            array(header),
            len(header),
            array(sealed),
            n,
            target,
            8,
            self._scratch,
        )
        assert set(target[:8]) | set(target[-8:]) == {CANARY}
        return outcome, target[8:-8].tobytes()

    def lengths(self, text: int, header: int) -> tuple[int, int]:
        """Outcomes of sealing and of opening with lengths that may be out of range."""
        room = np.zeros(BYTES_MAX + 64, dtype=np.uint8)
        made = [
            function(self._evp, key.context, room, room, header, room, text, room, 0, self._scratch)
            for function, key in zip((seal_bytes, open_bytes), self._keys, strict=True)
        ]
        return made[0], made[1]
