"""Mutations of the critical modules: deliberate faults, each of which a named test must find."""
