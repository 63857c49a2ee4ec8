"""Durable queues: who lies where, who reads what, and how far."""
