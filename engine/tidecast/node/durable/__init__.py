"""Durable topics: queues' logs, producers' sessions, and owners on other nodes."""
