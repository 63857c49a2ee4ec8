"""Kafka: the endpoint for Kafka's clients; `brokers` and `storing` are clients of its clusters.

A listening application above `node`, beside `gateway`. It may use `node`, the packages below it,
and the settings; nothing of it is imported unless an engine is started with it. See docs/KAFKA.md.
"""
