"""Shared by the REST routes of all domains: requests, their actors, resources and their audit."""
