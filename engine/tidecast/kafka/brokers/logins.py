"""SASL of a client: PLAIN (RFC 4616) and SCRAM (RFC 5802, 7677), without I/O.

A login is a generator: it yields bytes to send, gets the broker's answers by `send`, and returns
when the client may continue. It raises AuthError when the broker does not prove that it knows the
secret.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Generator

from tidecast.errors import AuthError

ITERATIONS_MIN, ITERATIONS_MAX = 4096, 1_000_000
"""Of SCRAM: fewer are too weak, more would keep this client busy for a broker that lies."""
Login = Generator[bytes, bytes, None]


def plain(user: str, secret: str) -> Login:
    """User and secret in the clear: for TLS, or a network that is trusted."""
    yield f"\0{user}\0{secret}".encode()


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _fields(text: bytes) -> dict[str, str]:
    try:
        return dict(one.split("=", 1) for one in text.decode().split(","))
    except (UnicodeDecodeError, ValueError):
        raise AuthError("SCRAM: the broker's answer is not SCRAM") from None


def scram(
    user: str, secret: str, algorithm: str, nonce: Callable[[], str] = secrets.token_hex
) -> Login:
    """Prove that both know the secret without sending it. ``algorithm``: sha256, sha512."""
    ours = nonce()
    first = f"n={_escaped(user)},r={ours}"
    challenge = yield f"n,,{first}".encode()
    fields = _fields(challenge)
    try:
        theirs, iterations = fields["r"], int(fields["i"])
        salt = base64.b64decode(fields["s"], validate=True)
    except (KeyError, ValueError):
        raise AuthError("SCRAM: the broker's challenge lacks r, s or i") from None
    if not theirs.startswith(ours) or len(theirs) == len(ours):
        raise AuthError("SCRAM: the broker's nonce is not ours continued")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise AuthError(
            f"SCRAM: {iterations} iterations: allowed {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        )
    salted = hashlib.pbkdf2_hmac(algorithm, secret.encode(), salt, iterations)
    last = f"c=biws,r={theirs}"
    signed = f"{first},{challenge.decode()},{last}".encode()
    client = hmac.digest(salted, b"Client Key", algorithm)
    proof = hmac.digest(hashlib.new(algorithm, client).digest(), signed, algorithm)
    mixed = bytes(a ^ b for a, b in zip(client, proof, strict=True))
    verdict = yield f"{last},p={base64.b64encode(mixed).decode()}".encode()
    expected = hmac.digest(hmac.digest(salted, b"Server Key", algorithm), signed, algorithm)
    found = _fields(verdict)
    if "e" in found:
        raise AuthError(f"SCRAM: {found['e']}")
    try:
        proved = base64.b64decode(found.get("v", ""), validate=True)
    except ValueError:
        proved = b""
    if not hmac.compare_digest(proved, expected):
        raise AuthError("SCRAM: the broker does not prove that it knows the secret")


def login(mechanism: str, user: str, secret: str) -> Login:
    """The login of a mechanism of `KafkaSource`."""
    if mechanism == "PLAIN":
        return plain(user, secret)
    return scram(user, secret, mechanism.removeprefix("SCRAM-").replace("SHA-", "sha").lower())
