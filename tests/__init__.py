"""Tests. A regular package, so that no other distribution's `tests` can come before it."""
