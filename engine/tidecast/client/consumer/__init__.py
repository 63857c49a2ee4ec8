"""Durable consumers: the core that takes and acks deliveries, messages, and both shells.

The core never waits; the waiting methods are in `client.flows`.
"""
