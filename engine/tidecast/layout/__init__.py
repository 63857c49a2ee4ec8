"""Where every byte lies: packets, messages, shared-memory files. No behaviour here.

Each module gives offsets as constants (kernels freeze them) and a `Layout` that lists the same
fields with their meaning; `docs/PROTOCOL.md` shows diagrams made from those.
"""
