"""Secrets of sealed transports: made and rotated here, handed to engines over their link."""
