"""Commands for sealed transports."""
