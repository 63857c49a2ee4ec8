"""Answers with records: their blocks in memory, blocks made of a log, and sending them."""
