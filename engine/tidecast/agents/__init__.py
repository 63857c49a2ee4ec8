"""Agents: each is one thread with one duty cycle; agents share data only in shared memory."""

from tidecast import supported

supported.check_libraries()
