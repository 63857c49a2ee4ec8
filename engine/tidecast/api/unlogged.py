"""The logger of the websocket library: it logs nothing, for its lines hold tokens."""

from __future__ import annotations

import logging

UNLOGGED = logging.Logger("tidecast.websockets")  # noqa: LOG001 - see below
"""The library logs handshakes with their headers at DEBUG: those hold tokens and keys.

`logging.getLogger` does not know this logger: `logging.config` enables the disabled loggers that
it finds there, whatever disabled them.
"""
UNLOGGED.disabled = True
