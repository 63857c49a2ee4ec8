"""From a URL to a `Link`: engines on this host, over a unix socket and shared memory."""
