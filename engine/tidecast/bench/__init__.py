"""`tidecast bench`: the figures of this machine, of Tidecast, and of its peers.

Every figure is taken beside its *floor*: the same system calls or memory operations without any
protocol, in the same run. Ratios travel between machines, absolute figures do not.
"""

from __future__ import annotations

from tidecast.bench.commands import cli

__all__ = ["cli"]
