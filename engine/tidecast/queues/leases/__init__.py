"""Owners of queues: leases, where they are stored, and how queues are balanced."""
