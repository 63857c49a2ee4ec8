"""Tidecast: a messaging platform in Python whose hot paths are compiled by Numba."""

__version__ = "0.1.0"
