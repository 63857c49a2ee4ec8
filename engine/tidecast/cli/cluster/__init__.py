"""Commands of the cluster as a whole."""
