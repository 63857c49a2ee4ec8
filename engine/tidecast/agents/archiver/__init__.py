"""The archiver: one duty cycle that appends published messages to the logs of the queues."""
