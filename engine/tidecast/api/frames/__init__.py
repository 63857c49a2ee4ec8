"""Frames of the contract on a wire: encoding and limits, no sockets."""
