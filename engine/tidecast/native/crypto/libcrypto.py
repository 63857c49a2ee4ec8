"""Finds libcrypto and creates the keys with which kernels seal and open packets.

Three places are tried: the library that Python's own `ssl` module uses, the system's
`libcrypto.so.3`, and the copy inside the wheel of `psycopg_binary`. A library is usable when it has
every function below and AES-128-GCM gives the result of NIST's test case 2: a build that lacks the
cipher, or whose policy refuses it, is skipped with its reason. The newest library is chosen, the
first of equals: OpenSSL 3.5 seals 1,400 bytes in 153 ns, 3.0 in 350, on the same processor: 3.0
does not use its VAES and AVX-512.

Kernels get the addresses of functions, in an array of their state: a cached kernel contains no part
of libcrypto, so kernels load and run on machines without it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tidecast.errors import ConfigError, NotFound

SUITE_AES_128_GCM, SUITE_AES_256_GCM = 1, 2
SUITE_NAMES = {SUITE_AES_128_GCM: "aes-128-gcm", SUITE_AES_256_GCM: "aes-256-gcm"}
KEY_BYTES = {SUITE_AES_128_GCM: 16, SUITE_AES_256_GCM: 32}
_CIPHERS = {SUITE_AES_128_GCM: "EVP_aes_128_gcm", SUITE_AES_256_GCM: "EVP_aes_256_gcm"}

FUNCTIONS = (
    "EVP_EncryptInit_ex",
    "EVP_EncryptUpdate",
    "EVP_EncryptFinal_ex",
    "EVP_DecryptInit_ex",
    "EVP_DecryptUpdate",
    "EVP_DecryptFinal_ex",
    "EVP_CIPHER_CTX_ctrl",
)
"""The functions that kernels call, in the order of their addresses in `Libcrypto.functions`."""
(
    ENCRYPT_INIT,
    ENCRYPT_UPDATE,
    ENCRYPT_FINAL,
    DECRYPT_INIT,
    DECRYPT_UPDATE,
    DECRYPT_FINAL,
    CONTROL,
) = range(len(FUNCTIONS))
GET_TAG, SET_TAG = 0x10, 0x11
"""Commands of `EVP_CIPHER_CTX_ctrl`."""

_TEST_CIPHERTEXT = bytes.fromhex("0388dace60b6a392f328c2b971b2fe78")
_TEST_TAG = bytes.fromhex("ab6e47d42cec13bdf53a67b21257bddf")
"""Test case 2 of McGrew and Viega's "The Galois/Counter Mode of Operation": all inputs are zero."""


class _DlInfo(ctypes.Structure):
    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


class Unusable(Exception):
    """A place has no usable libcrypto; the message has the reason."""


class Libcrypto:
    """A libcrypto that is usable for sealed transports.

    ``functions``: int64[7], the addresses of `FUNCTIONS`, for kernels. ``path``: the library's
    file; ``version``: as it names itself; ``number``: grows with OpenSSL's versions, else 0.
    """

    def __init__(self, library: Any) -> None:
        """Raises Unusable when a function is missing or the cipher gives a wrong answer."""
        self._library = library
        addresses = [_address_of(library, name) for name in FUNCTIONS]
        self.functions = np.array(addresses, dtype=np.int64)
        for name, kinds, result in _SIGNATURES:
            function = _function(library, name)
            function.argtypes, function.restype = kinds, result
        self.version = str(library.OpenSSL_version(0).decode("ascii", "replace"))
        is_openssl = self.version.startswith("OpenSSL")
        self.number = int(library.OpenSSL_version_num()) if is_openssl else 0
        self.path = _file_of(addresses[0])
        self._answer_known_test()

    def key(self, suite: int, secret: bytes, *, opens: bool) -> Key:
        """A key for sealing, or for opening. Raises ConfigError for a wrong suite or length."""
        if suite not in SUITE_NAMES:
            allowed = ", ".join(f"{number} ({name})" for number, name in SUITE_NAMES.items())
            raise ConfigError(f"suite: {suite}: allowed are {allowed}")
        if len(secret) != KEY_BYTES[suite]:
            raise ConfigError(
                f"key of {SUITE_NAMES[suite]}: {len(secret)} bytes: allowed are exactly "
                f"{KEY_BYTES[suite]}"
            )
        cipher = getattr(self._library, _CIPHERS[suite])()
        context = self._library.EVP_CIPHER_CTX_new()
        begin = self._library.EVP_DecryptInit_ex if opens else self._library.EVP_EncryptInit_ex
        if not context or not cipher or begin(context, cipher, None, secret, None) != 1:
            self._library.EVP_CIPHER_CTX_free(context)
            raise NotFound(f"{self.version}: {SUITE_NAMES[suite]} is not available")
        return Key(self._library, context)

    def _answer_known_test(self) -> None:
        try:
            key = self.key(SUITE_AES_128_GCM, bytes(16), opens=False)
        except NotFound as problem:
            raise Unusable(str(problem)) from None
        library, n = self._library, ctypes.c_int(0)
        out, tag = ctypes.create_string_buffer(16), ctypes.create_string_buffer(16)
        done = (
            library.EVP_EncryptInit_ex(key.context, None, None, None, bytes(12)) == 1
            and library.EVP_EncryptUpdate(key.context, out, ctypes.byref(n), bytes(16), 16) == 1
            and library.EVP_EncryptFinal_ex(key.context, None, ctypes.byref(n)) == 1
            and library.EVP_CIPHER_CTX_ctrl(key.context, GET_TAG, 16, tag) == 1
        )
        key.close()
        if not done or out.raw != _TEST_CIPHERTEXT or tag.raw != _TEST_TAG:
            raise Unusable(f"{self.version}: AES-GCM gives a wrong answer")


class Key:
    """A key inside libcrypto, for one direction. ``context``: its address, for kernels; never 0.

    Only one thread at a time may use it. The caller closes it when no kernel can use it any more.
    """

    def __init__(self, library: Any, context: int) -> None:
        self._library, self.context = library, context

    def close(self) -> None:
        """Wipe and free it. A second call does nothing."""
        context, self.context = self.context, 0
        if context:
            self._library.EVP_CIPHER_CTX_free(context)


_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_INIT = ((_POINTER, _POINTER, _POINTER, ctypes.c_char_p, ctypes.c_char_p), _INT)
_SIGNATURES: tuple[tuple[str, tuple[Any, ...], Any], ...] = (
    ("OpenSSL_version", (_INT,), ctypes.c_char_p),
    ("OpenSSL_version_num", (), ctypes.c_ulong),
    ("EVP_aes_128_gcm", (), _POINTER),
    ("EVP_aes_256_gcm", (), _POINTER),
    ("EVP_CIPHER_CTX_new", (), _POINTER),
    ("EVP_CIPHER_CTX_free", (_POINTER,), None),
    ("EVP_EncryptInit_ex", *_INIT),
    ("EVP_DecryptInit_ex", *_INIT),
    ("EVP_EncryptUpdate", (_POINTER, _POINTER, _POINTER, ctypes.c_char_p, _INT), _INT),
    ("EVP_EncryptFinal_ex", (_POINTER, _POINTER, _POINTER), _INT),
    ("EVP_CIPHER_CTX_ctrl", (_POINTER, _INT, _INT, _POINTER), _INT),
)


def _function(library: Any, name: str) -> Any:
    try:
        return getattr(library, name)
    except AttributeError:
        raise Unusable(f"it does not export {name}") from None


def _address_of(library: Any, name: str) -> int:
    return int(ctypes.cast(_function(library, name), ctypes.c_void_p).value or 0)


def _file_of(address: int) -> str:
    """The file that a function was loaded from; "" where the loader cannot tell."""
    found = _DlInfo()
    try:
        dladdr = ctypes.CDLL(None).dladdr
    except AttributeError:
        return ""
    dladdr.argtypes, dladdr.restype = (ctypes.c_void_p, ctypes.POINTER(_DlInfo)), ctypes.c_int
    if dladdr(address, ctypes.byref(found)) == 0 or not found.file:
        return ""
    return str(found.file.decode("utf-8", "replace"))


def _candidates() -> Iterator[tuple[str, str | None]]:
    """(place, file to load) of each place; None: the library that the process has loaded."""
    if importlib.util.find_spec("_ssl") is not None:
        import _ssl

        # Symbols of a module's dependencies are found through the module itself.
        yield "Python's ssl module", getattr(_ssl, "__file__", None)
    yield "the system", "libcrypto.so.3"
    wheel = importlib.util.find_spec("psycopg_binary")
    if wheel is not None and wheel.origin is not None:
        beside = Path(wheel.origin).parent.with_name("psycopg_binary.libs")
        for each in sorted(beside.glob("libcrypto-*.so.3")):
            yield "psycopg_binary", str(each)


@functools.cache
def find_libcrypto() -> Libcrypto:
    """The newest libcrypto that can be used. Raises NotFound with the reason of each place."""
    reasons, usable = [], []
    for place, file in _candidates():
        try:
            usable.append(Libcrypto(ctypes.CDLL(file)))
        except (OSError, Unusable) as problem:
            reasons.append(f"{place}: {problem}")
    if not usable:
        raise NotFound(f"no usable libcrypto: {'; '.join(reasons)}")
    return max(usable, key=lambda each: each.number)
