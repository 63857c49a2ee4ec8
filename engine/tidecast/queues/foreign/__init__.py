"""What adapters of other systems share: header maps, runs cut to buffers, sums of counts."""
