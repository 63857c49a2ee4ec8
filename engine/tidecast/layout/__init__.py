"""Layouts of packets, messages, logs and shared-memory files. No behaviour here.

Each module has offsets as constants (kernels freeze them) and a `Layout` that lists the same fields
with their meaning; the diagrams in `docs/PROTOCOL.md` are generated from the layouts.
"""
