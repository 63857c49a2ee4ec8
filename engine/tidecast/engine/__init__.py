"""The engine process: its lock and its unix socket.

An application above `node`.
"""
