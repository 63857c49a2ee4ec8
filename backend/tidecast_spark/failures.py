"""Errors of the platform come out of Spark as text inside Java exceptions: bring them back."""

from __future__ import annotations

import itertools
import logging
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


def refused_by_spark(problem: BaseException) -> errors.ConfigError | None:
    """Spark's own text on a filter, a setting or a name that it refuses, without the stack."""
    from pyspark.errors import AnalysisException, IllegalArgumentException

    if not isinstance(problem, AnalysisException | IllegalArgumentException):
        return None  # a ParseException is an AnalysisException
    said = [line.strip() for line in str(problem).strip().splitlines()]
    text = " ".join(itertools.takewhile(lambda line: line and line[0] not in "';=", said))
    return errors.ConfigError(text or str(problem))


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raise the platform's own error instead of the Spark exception around it."""
    # PySpark's logger repeats the exception's text on standard error, as JSON.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    try:
        yield
    except errors.TidecastError:
        raise
    except Exception as problem:
        own = platform_error(problem) or refused_by_spark(problem)
        if own is None:
            raise
        raise own from problem
