"""Columns of messages: payloads, keys, headers and times as sequences, NumPy and Arrow arrays."""
