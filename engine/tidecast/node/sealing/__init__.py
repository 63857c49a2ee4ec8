"""Keys of sealed transports: the secrets of epochs, and the keys that agents derive from them."""
