"""Health, version, metrics, the dashboard's files."""
