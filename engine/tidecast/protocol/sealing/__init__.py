"""Sealed packets: keys by HKDF, packet numbers and nonces, replay windows. No system calls.

`keys` derives keys, `sender` seals each packet under a new number, `receiver` opens packets that
are authentic and new, `window` remembers the numbers that came.
"""
