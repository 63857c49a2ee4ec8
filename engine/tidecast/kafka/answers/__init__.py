"""Answers with records: their blocks in memory, those that are made of a log, and sending them."""
