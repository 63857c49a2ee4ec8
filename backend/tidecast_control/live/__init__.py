"""The live feed: telemetry on demand, coalesced, resumable."""
