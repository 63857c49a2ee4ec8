"""The queue log: batches of records in segments, their indexes, recovery and retention."""
