"""Sealed packets: keys by HKDF, packet numbers and nonces, replay windows. No system calls.

`keys` derives, `sender` seals under a number that is never used again, `receiver` opens what is
authentic and new, `window` knows which numbers came.
"""
