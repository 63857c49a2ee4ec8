"""The gateway: remote clients over websockets, for hosts without an engine.

An application above `node`; it uses the client's kernels to read and fill rings.
"""
