"""Fields of requests and answers, by what the requests are about."""
