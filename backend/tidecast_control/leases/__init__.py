"""Leases of queues: who may append to which, with owner epochs, in Postgres."""
