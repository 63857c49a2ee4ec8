"""Topics whose queues are kept elsewhere: where, and how they are reached."""
