"""Sender and receiver: their duty cycles, and the tables that they work on."""
