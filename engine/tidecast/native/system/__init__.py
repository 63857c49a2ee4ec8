"""Calls of the operating system: sockets and clocks, files, socket filters, threads.

Kernels call `syscalls` and `files`; `filters` and `threads` are called from Python.
"""
