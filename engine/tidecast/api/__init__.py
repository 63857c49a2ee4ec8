"""The contract between a client and a node: options, grants, start positions, `Link`, questions.

It imports `layout`, `errors`, `events`, `config` and `native`; client and node both import it.
"""
