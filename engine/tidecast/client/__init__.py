"""The Python client: one core that never waits, a blocking and an asyncio shell around it."""
