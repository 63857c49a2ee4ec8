"""From a URL to a `Link`, and the link to an engine process on this host over its unix socket.

Questions go by `api.rpc`; messages lie in rings in shared memory.
"""
