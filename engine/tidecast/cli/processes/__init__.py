"""The engine as a process of its own, and the process that restarts it."""
