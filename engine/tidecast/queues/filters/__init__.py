"""Filters of records: the text language and its kernels."""
