"""Agents: one thread, one duty cycle each; they meet others only in shared memory."""

from tidecast import supported

supported.check_libraries()
