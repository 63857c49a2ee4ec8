"""Appends of mirrors."""
