"""The link to engines: registration, topology, telemetry, commands."""
