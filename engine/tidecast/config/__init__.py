"""Configuration of nodes, transports and topics: what a topology file may say, checked and typed.

It imports `layout`, `errors` and `access`.
"""
