"""TLS of a client, from the settings of the servers."""

from __future__ import annotations

import ssl
from typing import Protocol

from tidecast.errors import ConfigError


class TlsSettings(Protocol):
    """Settings of a source about TLS. ``ca``, ``certificate``, ``key``: PEM files, or empty."""

    @property
    def tls(self) -> bool:
        """Its servers speak TLS."""

    @property
    def ca(self) -> str:
        """The authorities that certify the servers; empty: those of the system."""

    @property
    def certificate(self) -> str:
        """The certificate of this client."""

    @property
    def key(self) -> str:
        """The key of the certificate."""


def client_context(section: str, settings: TlsSettings) -> ssl.SSLContext | None:
    """The context for connections to the servers; None: they speak clear text.

    ``section``: of the settings, for errors. Raises ConfigError.
    """
    if not settings.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=settings.ca or None)
        if settings.certificate:
            context.load_cert_chain(settings.certificate, settings.key)
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError(
            f"{section}: ca {settings.ca or 'of the system'}, certificate "
            f"{settings.certificate or 'none'}: {problem}: PEM files are needed"
        ) from None
    return context
