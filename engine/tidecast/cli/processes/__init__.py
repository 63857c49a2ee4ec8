"""The engine as a process of its own, and the one that starts it again."""
