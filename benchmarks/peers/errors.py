"""Errors of peers.

PeerError
+-- PeerMissing   not installed here                              peer_missing
+-- BenchUnknown  the peer has no such bench, or config key       bench_unknown
+-- PeerTimeout   a process did not answer in time (retryable)    peer_timeout
+-- PeerFailed    a process ended without a result (retryable)    peer_failed
"""


class PeerError(Exception):
    """Any of the below."""

    code = "peer_error"
    retryable = False


class PeerMissing(PeerError):
    code = "peer_missing"


class BenchUnknown(PeerError):
    code = "bench_unknown"


class PeerTimeout(PeerError):
    code = "peer_timeout"
    retryable = True


class PeerFailed(PeerError):
    code = "peer_failed"
    retryable = True
