"""Compiled functions of the client: the doors from Python to rings."""
