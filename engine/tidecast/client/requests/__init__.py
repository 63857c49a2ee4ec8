"""Requests and replies on live topics. See docs/CLIENT.md and docs/adr/0024.

May use the cores and the flows, never the shells.
"""
