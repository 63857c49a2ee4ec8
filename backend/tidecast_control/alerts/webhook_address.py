"""Which webhook addresses are allowed."""

from __future__ import annotations

from urllib.parse import urlsplit


def checked_address(url: str) -> str:
    """The URL itself, or "". Raises ValueError when it is no plain http(s) URL."""
    if not url:
        return url
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ValueError("allowed is an http or https URL without user and password")
    return url
