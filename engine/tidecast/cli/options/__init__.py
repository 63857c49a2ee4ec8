"""Types of options that several commands share."""
