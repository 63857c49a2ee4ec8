"""Topics whose payloads have a type: what `Connection.topic` opens."""
