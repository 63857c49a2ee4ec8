"""What was asked of engines: pause, seek, purge, re-drive."""
