"""Durable consumers: a core that never waits, with a blocking and an asyncio shell."""
