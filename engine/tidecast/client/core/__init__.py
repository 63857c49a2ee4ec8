"""Connections, publishers, subscriptions and messages without any waiting: steps over rings.

A step does the work that is possible now, and reports the rest. It uses kernels and links, never
flows or shells.
"""
