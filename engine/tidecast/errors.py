"""Every error that Tidecast raises, one tree.

    TidecastError
    ├── ConfigError            a setting, file or argument is wrong (names field, value, allowed)
    ├── ConnectionLost         the engine is gone or cannot be reached            (retryable)
    │   └── EngineNotRunning   nothing listens where the engine should be         (retryable)
    ├── AuthError              the token is missing or wrong, or lacks the right
    ├── Timeout                the wait ran out                                   (retryable)
    │   └── RequestTimeout     no reply to a request came in time; a TimeoutError (retryable)
    ├── NoResponders           no receiver for a message to one receiver          (retryable)
    ├── ResponderLost          the responder ended before its reply came          (retryable)
    ├── RequestFailed          the responder's handler raised; see ``kind``
    ├── BackPressure           the ring is full: receivers or the network lag     (retryable)
    │   └── RateLimited        the rate limit is used up; see ``retry_after_s``   (retryable)
    ├── PayloadTooLarge        a message is larger than half the history
    ├── GapError               messages were lost for good; see ``lost_range``
    ├── NotFound               no such topic, transport, file
    ├── Conflict               it exists already, or is in use
    ├── Fenced                 a newer incarnation has taken over
    ├── Closed                 used after close
    ├── ForkedProcess          used in a child of the process that made it
    ├── CodecError             a payload cannot be encoded or decoded
    ├── StorageError           the disk under a durable topic is full or fails    (retryable)
    ├── CorruptLog             bytes of a log, or of a subscription, are damaged
    ├── SequenceGap            a producer would leave out sequences; see ``expected``
    └── SharedMemoryError      no room for, or damage in, a shared-memory file

Each class has a stable ``code`` and says whether trying again can help (``retryable``).
"""

from __future__ import annotations

from typing import ClassVar


class TidecastError(Exception):
    """Root of the tree. ``code`` is stable; ``retryable`` says whether trying again can help."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False


class ConfigError(TidecastError):
    """A setting is wrong. ``problems`` lists each as ``field: value: allowed values``."""

    code = "config"

    def __init__(self, message: str, problems: list[str] | None = None) -> None:
        super().__init__(message)
        self.problems = problems or [message]


class ConnectionLost(TidecastError):
    """The engine is gone or cannot be reached."""

    code, retryable = "connection_lost", True


class EngineNotRunning(ConnectionLost):
    """Nothing listens where the engine should be."""

    code = "engine_not_running"


class AuthError(TidecastError):
    """The token is missing or wrong, or lacks the right."""

    code = "auth"


class Timeout(TidecastError):
    """The wait ran out."""

    code, retryable = "timeout", True


class RequestTimeout(Timeout, TimeoutError):
    """No reply to a request came in time. The request may have been handled."""

    code = "request_timeout"


class NoResponders(TidecastError):
    """A message to one receiver has no receiver, or a topic has no responder."""

    code, retryable = "no_responders", True


class ResponderLost(TidecastError):
    """The responder that had the request ended before its reply came: it may have handled it."""

    code, retryable = "responder_lost", True


class RequestFailed(TidecastError):
    """The responder could not handle the request. ``kind``: name of the exception it raised."""

    code = "request_failed"

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class BackPressure(TidecastError):
    """The ring is full: receivers or the network lag behind."""

    code, retryable = "back_pressure", True


class RateLimited(BackPressure):
    """The rate limit is used up."""

    code = "rate_limited"

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PayloadTooLarge(TidecastError):
    """A message is larger than half the publication's history."""

    code = "payload_too_large"


class GapError(TidecastError):
    """Messages were lost for good. ``lost_range`` is (first packet, packet behind the last)."""

    code = "gap"

    def __init__(self, message: str, lost_range: tuple[int, int]) -> None:
        super().__init__(message)
        self.lost_range = lost_range


class NotFound(TidecastError):
    """No such topic, transport or file."""

    code = "not_found"


class Conflict(TidecastError):
    """It exists already, or is in use."""

    code = "conflict"


class Fenced(TidecastError):
    """A newer incarnation has taken over."""

    code = "fenced"


class Closed(TidecastError):
    """Used after close."""

    code = "closed"


class ForkedProcess(TidecastError):
    """Used in a child of the process that made it: connect again in the child."""

    code = "forked"


class CodecError(TidecastError):
    """A payload cannot be encoded or decoded."""

    code = "codec"


class StorageError(TidecastError):
    """The disk under a durable topic is full or fails. ``errno`` says which."""

    code, retryable = "storage", True

    def __init__(self, message: str, errno: int = 0) -> None:
        super().__init__(message)
        self.errno = errno


class CorruptLog(TidecastError):
    """Bytes of a queue's log, or of a file beside it, are damaged."""

    code = "corrupt_log"


class SequenceGap(TidecastError):
    """A producer's session begins behind the sequence that is due: ``expected``."""

    code = "sequence_gap"

    def __init__(self, message: str, expected: int) -> None:
        super().__init__(message)
        self.expected = expected


class SharedMemoryError(TidecastError):
    """No room for, or damage in, a shared-memory file."""

    code = "shared_memory"


def fenced(topic: str, epoch: int) -> Fenced:
    """The error for a session that a newer one has taken over."""
    return Fenced(
        f"topic {topic}: a newer session of the same producer has begun (this one has epoch "
        f"{epoch}): two publishers use one producer name; end this one: its messages "
        "without an ack are not stored; if both are meant to run, give each a name of its own"
    )
