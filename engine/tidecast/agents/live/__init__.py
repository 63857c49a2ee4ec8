"""Sender and receiver: one duty cycle each, and the tables that they work on."""
