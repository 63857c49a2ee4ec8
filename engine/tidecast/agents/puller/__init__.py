"""The puller: one duty cycle that reads queues and delivers records to members."""
