"""`tidecast mirror`: copies a source to a durable topic, each record once. See docs/MIRROR.md."""
