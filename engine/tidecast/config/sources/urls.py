"""Settings of a source in one URL: ``SCHEME://HOST:PORT,HOST:PORT/NAME?setting=value``."""

from __future__ import annotations

from collections.abc import Container
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tidecast.errors import ConfigError


def settings_of(url: str, path: str, numbers: Container[str]) -> dict[str, Any]:
    """Settings as in YAML, not checked yet. Raises ConfigError.

    ``path``: the setting that the URL's path has. ``numbers``: settings that are whole numbers.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ConfigError(
            f"{parts.scheme}://...: a login does not belong into it: use user and secret_file"
        )
    given: dict[str, Any] = {"servers": parts.netloc, path: unquote(parts.path.strip("/"))}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in given:
            raise ConfigError(f"{parts.scheme}.{name}: given twice")
        given[name] = {"true": True, "false": False}.get(value, value)
        if name in numbers and value.isdecimal():
            given[name] = int(value)
    return given
