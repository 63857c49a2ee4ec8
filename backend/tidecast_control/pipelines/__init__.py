"""Pipelines: jobs on Spark that the service starts by schedule or by hand."""
