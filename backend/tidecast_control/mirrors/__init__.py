"""Mirrors of Kafka and JetStream that the service keeps running: docs/MIRROR.md."""
