"""Arrow's C data interface."""
