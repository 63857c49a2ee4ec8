"""What a node shows of itself, and samples of it in a durable topic of its own.

An application above `node`.
"""
