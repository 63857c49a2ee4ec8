"""What all domains share: problems, resources, database, paging."""
