"""Keys that a node knows, and the rights that a request needs."""
