"""Live topics: publications, sessions of other nodes, images.

Also the tables that sender and receiver work on.
"""
