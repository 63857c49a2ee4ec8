"""Frames of the contract on a wire: encoding and limits, no sockets.

`common` is shared by all connections; the unix socket adds its own.
"""
