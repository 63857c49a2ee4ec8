"""Waiting flows, each written once as a generator of steps, which a driver carries out.

A flow chooses the next step and does no waiting of its own; `steps` has the steps and the two
drivers, blocking and asyncio. May use the cores, never the shells.
"""
