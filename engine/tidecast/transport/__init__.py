"""How packets leave and arrive: UDP sockets, in-memory network, fault injection under both."""
