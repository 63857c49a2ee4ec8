"""A client of Kafka's brokers: connections, leaders, and the adapter that reads their topics.

On the codec of the endpoint, without another library. Nothing of it is imported unless it is used.
See docs/KAFKA_TOPICS.md.
"""
