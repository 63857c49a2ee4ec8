"""Token buckets: packets/s and bytes/s; idle time earns at most one capped burst.

fast-cast banks idle credit without bound (50,000 packets at once after ten seconds); here a bucket
never holds more than `BURST_NS` worth of tokens or one packet burst, whichever is more.
"""

from __future__ import annotations

from tidecast.native.jit import inlined

BURST_NS = 2_000_000
BURST_PACKETS_MIN = 64


@inlined
def refill(tokens, rate_per_s, elapsed_ns, burst_min):
    """Tokens after ``elapsed_ns``, capped; a debt, from a time without a limit, is forgiven."""
    cap = max(rate_per_s * (BURST_NS / 1e9), burst_min)
    return min(max(tokens, 0.0) + rate_per_s * (elapsed_ns / 1e9), cap)


@inlined
def allowed_packets(tokens_packets, tokens_bytes, rate_packets, rate_bytes, packet_bytes, wanted):
    """How many full packets may go now, at most ``wanted``. A rate of 0 means no limit."""
    allowed = wanted
    if rate_packets > 0:
        allowed = min(allowed, int(tokens_packets))
    if rate_bytes > 0:
        allowed = min(allowed, int(tokens_bytes / packet_bytes))
    return max(allowed, 0)
