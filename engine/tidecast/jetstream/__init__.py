"""NATS JetStream: an adapter that reads streams; `storing` writes topics to streams.

On frames of its own, without another library. Nothing of it is imported unless it is used.
See docs/JETSTREAM.md.
"""
