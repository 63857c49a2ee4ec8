"""The pulling agent: one duty cycle that reads queues and delivers to members."""
