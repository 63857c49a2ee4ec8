"""TCP and TLS connections to servers of other systems, and how clients wait for absent servers.

It knows no protocol: `kafka.brokers` and `jetstream` add theirs. It imports errors and `api`.
"""
