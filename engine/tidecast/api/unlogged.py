"""A logger that drops all lines, for the websocket library: its lines hold tokens."""

from __future__ import annotations

import logging

UNLOGGED = logging.Logger("tidecast.websockets")  # noqa: LOG001 - see below
"""The library logs the headers of handshakes at DEBUG, and headers hold tokens and keys.

`logging.getLogger` does not know this logger. `logging.config` would enable it otherwise: a
configuration with ``disable_existing_loggers: false`` enables all loggers that it finds.
"""
UNLOGGED.disabled = True
