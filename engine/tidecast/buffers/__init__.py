"""Data structures in shared memory: the packet ring and its writers and readers."""
