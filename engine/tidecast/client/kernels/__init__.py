"""Compiled functions of the client: the doors from Python to rings.

They take addresses of ports and buffers; every length is checked before it gets here.
"""
