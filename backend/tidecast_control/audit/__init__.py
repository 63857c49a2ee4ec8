"""The audit: actions and denials, with their actors."""
