"""Messages of `pub` and `sub`: their input, their formats, where they are read from."""
