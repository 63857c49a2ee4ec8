"""Hosts of a test: network namespaces on a bridge, with faults on each port of the bridge."""
