"""History: rollups of telemetry of topics, queues, subscriptions and nodes."""
