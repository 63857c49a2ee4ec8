"""Jobs on Spark: the command, and running them here."""
