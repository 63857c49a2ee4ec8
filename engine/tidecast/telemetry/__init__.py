"""The telemetry of a node: views, and samples of it in a durable topic of its own.

An application above `node`.
"""
