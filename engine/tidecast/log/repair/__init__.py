"""The contents of a queue's directory after a crash or damage, and whether all of it is sound.

It may use `tidecast.log.reading`; `recovery` alone changes files.
"""
