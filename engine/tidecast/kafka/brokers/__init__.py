"""Tidecast as a client of Kafka's brokers: an adapter that reads their topics, and a sender.

On the codec of the endpoint, without another library. Nothing of it is imported unless it is used.
See docs/KAFKA_TOPICS.md.
"""
