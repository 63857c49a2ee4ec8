"""Groups of consumers: who reads which partition, and the offsets that they commit."""
