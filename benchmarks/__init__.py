"""Benchmarks: peers beside Tidecast, and what was measured."""
