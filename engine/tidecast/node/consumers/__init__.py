"""Durable subscriptions: members, positions, dead letters, re-drive."""
