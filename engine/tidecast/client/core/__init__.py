"""The client's core, which never waits: connection, publisher, subscription, messages."""
