"""Writing durable topics to streams of NATS JetStream: each record once and in order.

A queue has a stream, and a record is a message of it. Each message expects the sequence before its
own, so a repetition is refused. `fencing.fence` puts more markers into a stream, at once or not at
all, than messages of a writer can be under way: none of these is taken from then on. See
docs/adr/0060.
"""
