"""Shared by all domains: problems, resources, database, paging."""
