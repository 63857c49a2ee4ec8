"""Requests to engines: pause, seek, purge, re-drive."""
