"""One request to the control service, and the error for its refusal."""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tidecast.errors import (
    AuthError,
    ConfigError,
    Conflict,
    ConnectionLost,
    NotFound,
    RateLimited,
    TidecastError,
    Timeout,
)

KEY = "TIDECAST_KEY"
URL = "TIDECAST_CONTROL_URL"
DEFAULT_URL = "http://127.0.0.1:7480"
PREFIX, VERSION = "/api/", "/api/v1"
TIMEOUT_S = 60.0
ANSWER_BYTES_MAX = 1 << 30
_TEXT_SHOWN_MAX = 500
_RETRY_S = 1.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the request that follows would carry the key to another address."""

    def redirect_request(self, *_: object) -> None:
        """See the base."""
        return


class Answer(NamedTuple):
    """The service's answer."""

    body: bytes
    etag: str


class Service:
    """Where a control service is, and the key to it. Safe from any thread: it keeps no state."""

    def __init__(
        self, url: str | None, key: str | None, timeout: float = TIMEOUT_S, ca: Path | None = None
    ) -> None:
        """``ca``: a file of certificates to trust, for ``https``. Raises ConfigError."""
        self.url = (url or os.environ.get(URL) or DEFAULT_URL).rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"url: {self.url}: an address that begins with http:// or https://")
        given = key or os.environ.get(KEY)
        if not given:
            raise ConfigError(
                f"no key: set {KEY} to the secret of an API key; the page makes one (Keys & users)"
            )
        self._key, self._timeout_s = given, timeout
        tls = ssl.create_default_context(cafile=str(ca)) if ca is not None else None
        self._opener = urllib.request.build_opener(
            _NoRedirects, urllib.request.HTTPSHandler(context=tls)
        )

    def send(
        self,
        method: str,
        path: str,
        body: tuple[bytes, str] | None = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request. ``path``: under /api/v1, or from /api/ on; ``body``: and its type.

        ``query``: None is left out, a list is repeated. Raises AuthError, NotFound, Conflict,
        ConfigError, RateLimited, Timeout, ConnectionLost.
        """
        path = "/" + path.lstrip("/")
        asked = {name: _word(value) for name, value in (query or {}).items() if value is not None}
        address = self.url + (path if path.startswith(PREFIX) else VERSION + path)
        if asked:
            address += "?" + urlencode(asked, doseq=True)
        request = urllib.request.Request(address, method=method, headers=dict(headers or {}))
        request.add_header("Authorization", f"Bearer {self._key}")
        if body is not None:
            request.data, media_type = body
            request.add_header("Content-Type", media_type)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as got:
                return Answer(got.read(ANSWER_BYTES_MAX), got.headers.get("ETag") or "")
        except urllib.error.HTTPError as refused:
            raise _error_of(refused) from None
        except TimeoutError:
            raise Timeout(f"{self.url} did not answer within {self._timeout_s:g} s") from None
        except OSError as problem:
            raise ConnectionLost(f"{self.url} does not answer: {problem}") from None


def _word(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value


def _problem_of(item: dict[str, Any]) -> str:
    """A field of a problem document: its place, its value, and the allowed ones."""
    text, allowed = f"{item['pointer']}: {item['detail']}", item.get("allowed")
    return text if not allowed or "allowed" in text else f"{text}: allowed {allowed}"


def _error_of(refused: urllib.error.HTTPError) -> TidecastError:
    """The error whose text is ``409: the title; why``, of a problem document, each reason once."""
    text = refused.read(ANSWER_BYTES_MAX).decode("utf-8", "replace")
    problems: list[str] = []
    try:
        document = json.loads(text)
        problems = [_problem_of(one) for one in document.get("errors") or ()]
        detail = str(document.get("detail") or "")
        if any(each.startswith(detail) for each in problems):
            detail = ""
        said = [str(document["title"]), detail, *problems]
        message = f"{refused.code}: " + "; ".join(dict.fromkeys(filter(None, said)))
    except (ValueError, KeyError, TypeError, AttributeError):
        message = f"{refused.code} {refused.reason}: {text[:_TEXT_SHOWN_MAX]}"
    if refused.code == 429:
        return RateLimited(message, _seconds(refused.headers.get("Retry-After")))
    kind = _KINDS.get(refused.code)
    if kind is not None:
        return kind(message)
    if refused.code >= 500:
        return ConnectionLost(message)
    return ConfigError(message, problems)


_KINDS: dict[int, type[TidecastError]] = {
    401: AuthError,
    403: AuthError,
    404: NotFound,
    409: Conflict,
    412: Conflict,
    502: TidecastError,
    504: Timeout,
}


def _seconds(text: str | None) -> float:
    try:
        return max(0.0, float(text or _RETRY_S))
    except ValueError:
        return _RETRY_S
