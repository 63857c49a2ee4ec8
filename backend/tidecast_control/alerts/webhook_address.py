"""Which webhook URLs are allowed, and how one is shown: its host alone, the rest is secret."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from urllib.parse import urlsplit

MASK = "********"
SECRET_PREFIX, SECRET_BYTES_MIN, SECRET_BYTES_MAX = "whsec_", 24, 64
_MARKED = re.compile(r"\*{8}-([0-9a-f]{12})\Z")
_PLAIN = re.compile(r"[\x21-\x7e]+\Z")


def checked_address(url: str) -> str:
    """The URL itself, or "". Raises ValueError when no request could be sent to it."""
    if not url:
        return url
    allowed = "allowed is an http or https URL in ASCII, without user, password and fragment"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        sound = bool(_PLAIN.match(url)) and bool(host) and port != 0
        if sound and host is not None and ":" not in host:
            host.encode("idna")
    except (ValueError, UnicodeError):
        raise ValueError(allowed) from None
    if not sound or parts.scheme not in ("http", "https") or "@" in parts.netloc or parts.fragment:
        raise ValueError(allowed)
    return url


def checked_secret(secret: str) -> str:
    """The secret itself, or "". Raises ValueError: see https://www.standardwebhooks.com."""
    if secret and not _MARKED.match(secret):
        key_of(secret)
    return secret


def key_of(secret: str) -> bytes:
    """The key that a secret stands for. Raises ValueError."""
    allowed = (
        f"allowed is {SECRET_PREFIX} and {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes in base64"
    )
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise ValueError(allowed) from None
    sound = SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX
    if not secret.startswith(SECRET_PREFIX) or not sound:
        raise ValueError(allowed)
    return key


def masked(value: str) -> str:
    """How a URL or a secret is shown: it differs from any other, and cannot be read."""
    mark = f"{MASK}-{hashlib.sha256(value.encode()).hexdigest()[:12]}"
    if value.startswith(SECRET_PREFIX):
        return mark
    parts = urlsplit(value)
    return f"{parts.scheme}://{parts.netloc}/{mark}"


def is_masked(value: str) -> bool:
    """Whether `masked` made the value."""
    return _MARKED.search(value) is not None
