"""TLS of a server: its certificate, loaded again when the files change."""

from __future__ import annotations

import ssl
from pathlib import Path

from tidecast.errors import ConfigError


class Certificate:
    """A certificate and its key in PEM files."""

    def __init__(self, server: str, certificate: Path, key: Path) -> None:
        """``server``: for errors. Raises ConfigError when the files cannot be read together."""
        self._server = server
        self._files = (certificate, key)
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._stamp = self._load()

    def _load(self) -> tuple[int, ...]:
        certificate, key = self._files
        try:
            stamp = tuple(path.stat().st_mtime_ns for path in self._files)
            self.context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as problem:
            raise ConfigError(
                f"{self._server}: certificate {certificate}, key {key}: {problem}: two PEM files "
                "that belong together are needed"
            ) from None
        return stamp

    def reload(self) -> bool:
        """Load the files if they changed: for connections from now on. Raises ConfigError.

        A file that cannot be loaded changes nothing: the certificate before stays, and the next
        call tries again.
        """
        try:
            now = tuple(path.stat().st_mtime_ns for path in self._files)
        except OSError:
            return False
        if now == self._stamp:
            return False
        # both files, checked apart, before any is in use
        fresh = Certificate(self._server, *self._files)
        self.context.load_cert_chain(*self._files)
        self._stamp = fresh._stamp
        return True
