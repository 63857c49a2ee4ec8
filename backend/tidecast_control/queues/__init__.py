"""Queues: the durable partitions of topics."""
