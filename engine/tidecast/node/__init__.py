"""The node: publications, subscriptions and durable topics, and the agents that serve them."""
