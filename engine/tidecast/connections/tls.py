"""TLS of a client, from the files that its settings name."""

from __future__ import annotations

import ssl

from tidecast.errors import ConfigError


def client_context(section: str, ca: str, certificate: str, key: str) -> ssl.SSLContext:
    """The context for connections to servers. ``section``: of the settings, for errors.

    ``ca``: PEM file of the authorities of the servers; empty: those of the system. ``certificate``,
    ``key``: PEM files of this client, or empty. Raises ConfigError.
    """
    try:
        context = ssl.create_default_context(cafile=ca or None)
        if certificate:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError(
            f"{section}: ca {ca or 'of the system'}, certificate {certificate or 'none'}: "
            f"{problem}: PEM files are needed"
        ) from None
    return context
