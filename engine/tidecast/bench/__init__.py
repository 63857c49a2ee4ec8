"""`tidecast bench`: what this machine can do, what Tidecast does of it, and what its peers do.

Every figure is taken beside its *floor*: the same system calls or memory operations without any
protocol, in the same run. Ratios travel between machines, absolute figures do not.
"""

from __future__ import annotations

from tidecast.bench.commands import cli

__all__ = ["cli"]
