"""`pub`, `sub`, requests: their messages, in which formats, where they are read from."""
