"""Users, sessions, API keys, rights."""
