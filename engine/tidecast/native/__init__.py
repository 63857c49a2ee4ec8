"""The only code that touches LLVM, libc and raw memory. Everything above works on byte arrays.

`jit` compiles kernels, `memory` loads and stores, `atomics` orders, `system` calls libc,
`mapped` maps files. See `docs/adr/0002-byte-arrays-and-offsets.md` for why arrays, not pointers.
"""
