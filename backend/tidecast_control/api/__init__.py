"""What the REST routes of all domains share: requests, their actors, resources and their audit."""
