"""Groups of consumers: the partitions that each member reads, and the committed offsets."""
