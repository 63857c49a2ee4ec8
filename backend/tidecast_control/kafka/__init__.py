"""Clients and groups of the Kafka endpoints of engines."""
