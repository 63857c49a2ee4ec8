"""Keys of sealed transports: the secrets of epochs, and what the agents derive from them."""
