"""Rate limits as policies by name pattern."""
