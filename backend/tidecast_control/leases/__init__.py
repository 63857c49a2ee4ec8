"""Leases of queues: which node may append to which queue, with owner epochs, in Postgres."""
