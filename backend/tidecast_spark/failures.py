"""Errors of the platform come out of Spark as text inside Java exceptions: bring them back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tidecast import errors

_RAISED = re.compile(r"^tidecast\.errors\.(\w+): (.*?)(?:\n SQLSTATE.*)?$", re.MULTILINE)


def platform_error(problem: BaseException) -> errors.TidecastError | None:
    """The error of the platform that a Spark exception is about, or None."""
    found = _RAISED.findall(str(problem))
    if not found:
        return None
    name, text = found[-1]
    kind = getattr(errors, name, errors.TidecastError)
    if kind in (errors.GapError, errors.SequenceGap, errors.RateLimited):
        return errors.TidecastError(text)  # made of more than a text
    made: errors.TidecastError = kind(text)
    return made


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raise the platform's own error instead of the Spark exception around it."""
    try:
        yield
    except errors.TidecastError:
        raise
    except Exception as problem:
        own = platform_error(problem)
        if own is None:
            raise
        raise own from problem
