"""History: what the telemetry's rollups say of topics, queues, subscriptions and nodes."""
