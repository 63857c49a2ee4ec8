"""Agents: one thread, one duty cycle each. They meet clients and each other only in shared memory."""
