"""Connections, publishers, subscriptions and messages without any waiting: steps over rings.

A step does what can be done now and says so. It uses kernels and links, never flows or shells.
"""
