"""The queue cache: payload blocks, cursors over them, and each cursor's window."""
