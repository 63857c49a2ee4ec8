"""Fault injection, guarded."""
