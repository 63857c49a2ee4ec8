"""Topics: what is wanted of each, and what the engines made of it."""
