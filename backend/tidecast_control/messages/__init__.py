"""Browsing and publishing messages."""
