"""Configuration of nodes, transports and topics: the contents of a topology file.

It imports `layout`, `errors` and `access`.
"""
