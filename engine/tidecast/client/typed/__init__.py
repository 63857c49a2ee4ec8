"""Topics whose payloads have a type: `Connection.topic` opens them."""
