"""The engine as a process: its lock, its unix socket for clients, its adapters.

An application above `node`.
"""
