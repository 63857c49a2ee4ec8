"""Compiled loops of the workers: they need kernels, and nothing of other benches."""
