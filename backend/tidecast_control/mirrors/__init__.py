"""Mirrors between Kafka and durable topics, kept running by the service: docs/MIRROR.md."""
