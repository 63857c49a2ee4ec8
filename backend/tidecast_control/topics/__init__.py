"""Topics: their desired state, and their state at the engines."""
