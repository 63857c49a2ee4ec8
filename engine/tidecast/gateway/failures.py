"""Failures as a client gets them: also of a defect, or the client would wait for ever."""

from __future__ import annotations

import logging

from tidecast.api.frames.common import Failure, failure_of
from tidecast.errors import TidecastError

_log = logging.getLogger("tidecast.gateway")


def failure_of_any(problem: Exception) -> Failure:
    """A failure for a client. A defect of the gateway is logged with its traceback."""
    if isinstance(problem, TidecastError):
        return failure_of(problem)
    _log.error("gateway: a request failed", exc_info=problem)
    text = f"internal error in the gateway: {type(problem).__name__}: {problem}"
    return Failure(code=TidecastError.code, message=text)
