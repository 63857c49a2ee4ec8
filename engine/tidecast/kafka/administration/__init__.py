"""Administration by Kafka's tools: topics and their settings."""
