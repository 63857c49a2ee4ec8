"""Fields of requests and answers, by subject."""
