"""Engines on hosts of their own: network namespaces, whose ports lose packets and are cut off."""
