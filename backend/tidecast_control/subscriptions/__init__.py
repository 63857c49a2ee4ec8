"""Durable subscriptions: position, lag, pause, seek, re-drive."""
