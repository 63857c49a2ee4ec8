"""Parts of the benches of topics that other systems keep, beside the clients of these systems."""
