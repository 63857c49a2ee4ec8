"""Reading segments: batch by batch, by token, by filter, and a range of a queue at once.

Nothing here writes. It may use the formats of `tidecast.log` and `native`.
"""
