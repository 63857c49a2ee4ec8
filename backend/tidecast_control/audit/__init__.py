"""What was done or denied, by whom."""
