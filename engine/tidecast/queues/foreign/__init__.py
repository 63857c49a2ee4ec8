"""Parts of adapters of other systems: header maps, runs cut to buffers, sums of counts."""
