"""The cipher of sealed packets: AES-GCM of the machine's libcrypto, called from kernels.

`libcrypto` finds the library and makes keys; `aes_gcm` seals and opens packets in kernels.
"""
