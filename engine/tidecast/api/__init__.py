"""The contract between a client and a node: options, grants, start positions, and the `Link`.

It imports `layout`, `errors`, `events`, `config`; client and node both import it.
"""
