"""Durable consumers: the core that takes and acks deliveries, messages, and both shells.

The core never waits; what waits is in `client.flows`.
"""
