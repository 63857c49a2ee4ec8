"""Durable queues: where records lie, which cursors read them, and how far these are."""
