"""Transports: how packets move."""
