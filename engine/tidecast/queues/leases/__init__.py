"""Who keeps a queue: leases, where they are stored, and how queues are balanced."""
