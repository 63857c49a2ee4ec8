"""Dead letters that other engines keep."""
