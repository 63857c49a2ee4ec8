"""`tidecast mirror`: to a durable topic, and from it to Kafka, each record once: docs/MIRROR.md."""
