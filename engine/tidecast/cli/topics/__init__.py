"""Commands on topics, their queues and their durable subscriptions."""
