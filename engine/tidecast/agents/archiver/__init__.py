"""The archiver: one duty cycle that appends what publishers wrote to the queues' logs."""
