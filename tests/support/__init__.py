"""Test doubles that several suites share."""
