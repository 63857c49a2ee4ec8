"""A `Link` to a gateway on another host, and a reader of its logs, over websockets.

The client's rings lie in this process: a reader thread fills them, a pump thread ships them.
"""
