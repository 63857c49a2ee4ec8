"""What Kafka's tools administer: topics and their settings."""
