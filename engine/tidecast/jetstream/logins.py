"""Logins of a NATS client, as the fields of CONNECT that they take.

An nkey proves by an Ed25519 signature of the server's nonce that the client has the seed, which
never leaves this process. Seeds are base32: two bytes of kind, 32 of seed, CRC-16 of both.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from tidecast.config.sources.jetstream import JetStreamSource
from tidecast.errors import ConfigError

_JWT = re.compile(r"-+BEGIN NATS USER JWT-+\s+(\S+)\s+-+END NATS USER JWT-+")
_SEED = re.compile(r"-+BEGIN USER NKEY SEED-+\s+(\S+)\s+-+END USER NKEY SEED-+")
_SEED_KIND, _USER_KIND = 18 << 3, 20 << 3
_SEED_BYTES = 36


def _seed(text: str, where: str) -> bytes:
    """The 32 bytes of a user's seed. Raises ConfigError, which shows nothing of it."""
    problem = ConfigError(f"jetstream.{where}: it has no seed of a user: SU and 56 letters")
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except binascii.Error:
        raise problem from None
    if len(raw) != _SEED_BYTES or binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(
        raw[-2:], "little"
    ):
        raise problem
    kind = (raw[0] & 7) << 5 | raw[1] >> 3
    if raw[0] & 0xF8 != _SEED_KIND or kind != _USER_KIND:
        raise problem
    return raw[2:-2]


def _signed(seed: bytes, nonce: str, where: str) -> tuple[str, str]:
    """(public key, signature of the nonce) as NATS writes them. Raises ConfigError."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise ConfigError(
            f"jetstream.{where}: it needs the package cryptography: "
            "pip install 'tidecast[jetstream]'"
        ) from None
    private = Ed25519PrivateKey.from_private_bytes(seed)
    public = bytes([_USER_KIND]) + private.public_key().public_bytes_raw()
    public += binascii.crc_hqx(public, 0).to_bytes(2, "little")
    signature = base64.urlsafe_b64encode(private.sign(nonce.encode())).decode().rstrip("=")
    return base64.b32encode(public).decode().rstrip("="), signature


def login(source: JetStreamSource, nonce: str) -> dict[str, Any]:
    """Fields of CONNECT. Raises ConfigError for a file that cannot be read or has no login."""
    if source.user:
        return {"user": source.user, "pass": source.secret("secret_file")}
    if source.token_file:
        return {"auth_token": source.secret("token_file")}
    if source.nkey_file:
        seed = _seed(source.secret("nkey_file"), "nkey_file")
        public, signature = _signed(seed, nonce, "nkey_file")
        return {"nkey": public, "sig": signature}
    if source.creds_file:
        text = source.secret("creds_file")
        jwt, secret = _JWT.search(text), _SEED.search(text)
        if jwt is None or secret is None:
            raise ConfigError(
                "jetstream.creds_file: it lacks BEGIN NATS USER JWT or BEGIN USER NKEY SEED"
            )
        _, signature = _signed(_seed(secret[1], "creds_file"), nonce, "creds_file")
        return {"jwt": jwt[1], "sig": signature}
    return {}


def name_of(source: JetStreamSource) -> str:
    """The login in an error; nothing of a secret."""
    if source.user:
        return f"user {source.user}"
    for name in ("token_file", "nkey_file", "creds_file"):
        if getattr(source, name):
            return f"{name} {getattr(source, name)}"
    return "no login: set user, token_file, nkey_file or creds_file"
