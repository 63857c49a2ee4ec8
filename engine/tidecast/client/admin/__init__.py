"""Administration from a program: `client.topics` and `client.subscriptions`.

Each call is one question to the engine, see `tidecast.api.link.Link.administer`.
"""
