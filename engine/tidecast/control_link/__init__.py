"""The link to the control service: topology in, observations and answers to commands out.

An application above `node`.
"""
