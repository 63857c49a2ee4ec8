"""The Kafka endpoint: unmodified Kafka clients produce to and consume from durable topics.

A listening application above `node`, beside `gateway`. It may use `node`, what lies below it, and
the settings; nothing of it is imported unless an engine is started with it. See docs/KAFKA.md.
"""
