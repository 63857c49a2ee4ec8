"""What a queue's directory holds after a crash, where it is damaged, whether all of it is sound.

It may use `tidecast.log.reading`; `recovery` alone changes files.
"""
