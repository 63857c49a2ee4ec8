"""A `Link` to a gateway on another host: rings in this process, frames over a websocket."""
