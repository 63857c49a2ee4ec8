"""The control service: topology and rate limits in Postgres, a REST API, engines and live data."""
