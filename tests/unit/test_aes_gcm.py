"""AES-GCM in kernels: published vectors, forged tags, lengths, and machines without a libcrypto."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.project import ROOT
from tests.support.aes_gcm import Cipher, Vector, vectors

from tidecast.errors import ConfigError, NotFound
from tidecast.native.crypto import libcrypto
from tidecast.native.crypto.aes_gcm import BYTES_MAX, DONE, FORGED, REFUSED, TAG_BYTES
from tidecast.native.crypto.libcrypto import (
    FUNCTIONS,
    SUITE_AES_128_GCM,
    SUITE_AES_256_GCM,
    Libcrypto,
    Unusable,
    find_libcrypto,
)

KEY, NONCE, HEADER = bytes(range(16)), bytes(range(12)), b"header of a packet"
SELF_TEST = """
import numpy as np
from tests.project import ROOT
from tests.support.aes_gcm import Cipher, vectors
for each in vectors():
    cipher = Cipher(each.key)
    outcome, text = cipher.open(each.nonce, each.header, each.sealed)
    assert (outcome == 0) == each.valid and (text == each.text or not each.valid), each.name
"""

COUNT_ALLOCATIONS = """
import ctypes, os
library, c = ctypes.CDLL("libcrypto.so.3"), ctypes.CDLL(None)
c.malloc.restype = c.realloc.restype = ctypes.c_void_p
c.malloc.argtypes, c.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
c.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
place, count = [ctypes.c_char_p, ctypes.c_int], [0]
def counted(function):
    def call(*args):
        count[0] += 1
        return function(*args[:-2])
    return call
kept = (
    ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, *place)(counted(c.malloc)),
    ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, *place)(counted(c.realloc)),
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, *place)(counted(c.free)),
)
if library.CRYPTO_set_mem_functions(*kept) != 1:
    print("in use already")
    raise SystemExit
from tests.project import ROOT
from tests.support.aes_gcm import Cipher
from tidecast.native.crypto.libcrypto import Libcrypto
cipher = Cipher(bytes(16), Libcrypto(library))
def work(nonce):
    sealed = cipher.seal(nonce.to_bytes(12, "big"), b"header", bytes(1400))
    assert cipher.open(nonce.to_bytes(12, "big"), b"header", sealed)[0] == 0
    assert cipher.open(nonce.to_bytes(12, "big"), b"another", sealed)[0] == 1
work(1)
before = count[0]
for nonce in range(2, 300):
    work(nonce)
print(before, count[0] - before, flush=True)
os._exit(0)  # the functions that free memory end with the interpreter
"""


@pytest.fixture
def cipher() -> Cipher:
    return Cipher(KEY)


@pytest.mark.parametrize("vector", vectors(), ids=lambda each: each.name)
def test_published_vectors(vector: Vector) -> None:
    cipher = Cipher(vector.key)
    outcome, text = cipher.open(vector.nonce, vector.header, vector.sealed)
    made = cipher.seal(vector.nonce, vector.header, vector.text)
    if vector.valid:
        assert (outcome, text) == (DONE, vector.text)
        assert made == vector.sealed
    else:
        assert (outcome, text) == (FORGED, bytes(len(vector.text)))
        assert made != vector.sealed


def test_the_vectors_have_both_key_lengths_and_forgeries() -> None:
    found = {(len(each.key), each.valid) for each in vectors()}
    assert found == {(16, True), (16, False), (32, True), (32, False)}


def test_every_flipped_bit_is_refused(cipher: Cipher) -> None:
    sealed, text = cipher.seal(NONCE, HEADER, b"to be kept secret"), b"to be kept secret"
    for bit in range(8 * len(sealed)):
        forged = bytearray(sealed)
        forged[bit // 8] ^= 1 << bit % 8
        assert cipher.open(NONCE, HEADER, bytes(forged)) == (FORGED, bytes(len(text)))
    for bit in range(8 * len(HEADER)):
        other = bytearray(HEADER)
        other[bit // 8] ^= 1 << bit % 8
        assert cipher.open(NONCE, bytes(other), sealed) == (FORGED, bytes(len(text)))
    for bit in range(8 * len(NONCE)):
        nonce = bytearray(NONCE)
        nonce[bit // 8] ^= 1 << bit % 8
        assert cipher.open(bytes(nonce), HEADER, sealed) == (FORGED, bytes(len(text)))
    assert cipher.open(NONCE, HEADER, sealed) == (DONE, text)  # a forgery leaves the key usable


@given(
    key=st.one_of(st.binary(min_size=16, max_size=16), st.binary(min_size=32, max_size=32)),
    nonce=st.binary(min_size=12, max_size=12),
    header=st.binary(max_size=200),
    text=st.binary(max_size=3000),
)
@settings(max_examples=60, deadline=None)
def test_what_was_sealed_opens(key: bytes, nonce: bytes, header: bytes, text: bytes) -> None:
    cipher = Cipher(key)
    sealed = cipher.seal(nonce, header, text)
    assert len(sealed) == len(text) + TAG_BYTES
    assert cipher.open(nonce, header, sealed) == (DONE, text)


def test_every_length_of_a_packet(cipher: Cipher) -> None:
    for n in range(600):
        text = bytes(i & 255 for i in range(n))
        assert cipher.open(NONCE, HEADER, cipher.seal(NONCE, HEADER, text)) == (DONE, text)


@pytest.mark.parametrize("text", [-1, BYTES_MAX + 1, 1 << 31, 1 << 62, -(1 << 31)])
def test_lengths_out_of_range_are_refused(cipher: Cipher, text: int) -> None:
    assert cipher.lengths(text, 16) == (REFUSED, REFUSED)
    assert cipher.lengths(16, text) == (REFUSED, REFUSED)
    assert cipher.open(NONCE, b"", cipher.seal(NONCE, b"", b"x")) == (DONE, b"x")


@pytest.mark.parametrize(
    ("suite", "length", "message"),
    [
        (0, 16, "suite: 0: allowed are 1 (aes-128-gcm), 2 (aes-256-gcm)"),
        (SUITE_AES_128_GCM, 15, "key of aes-128-gcm: 15 bytes: allowed are exactly 16"),
        (SUITE_AES_128_GCM, 32, "key of aes-128-gcm: 32 bytes: allowed are exactly 16"),
        (SUITE_AES_256_GCM, 16, "key of aes-256-gcm: 16 bytes: allowed are exactly 32"),
    ],
)
def test_keys_of_a_wrong_length_are_refused(suite: int, length: int, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        find_libcrypto().key(suite, bytes(length), opens=False)
    assert str(raised.value) == message


def test_a_key_is_closed_once() -> None:
    key = find_libcrypto().key(SUITE_AES_128_GCM, KEY, opens=True)
    assert key.context != 0
    key.close()
    key.close()
    assert key.context == 0


# --- the library ---------------------------------------------------------------------------------


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str | None]]]:
    """The places that are looked at, for a test to change."""
    found: list[tuple[str, str | None]] = []
    monkeypatch.setattr(libcrypto, "_candidates", lambda: iter(found))
    find_libcrypto.cache_clear()
    yield found
    find_libcrypto.cache_clear()


def test_every_place_that_has_one_gives_the_same_answers() -> None:
    tried = 0
    for _, file in list(libcrypto._candidates()):
        try:
            library = Libcrypto(ctypes.CDLL(file))
        except (OSError, Unusable):
            continue
        tried += 1
        assert library.version.startswith(("OpenSSL", "LibreSSL", "BoringSSL", "AWS-LC"))
        assert Cipher(KEY, library).seal(NONCE, HEADER, b"x") == Cipher(KEY).seal(
            NONCE, HEADER, b"x"
        )
    assert tried >= 1


def test_no_library_is_an_error_that_names_each_place(
    places: list[tuple[str, str | None]],
) -> None:
    places += [("here", "libnothere.so.3"), ("there", "libc.so.6")]
    with pytest.raises(NotFound) as raised:
        find_libcrypto()
    text = str(raised.value)
    assert text.startswith("no usable libcrypto: here: libnothere.so.3: cannot open")
    assert text.endswith(f"there: it does not export {FUNCTIONS[0]}")


def test_the_next_place_is_taken(places: list[tuple[str, str | None]]) -> None:
    import _ssl

    places += [("here", "libnothere.so.3"), ("Python's ssl module", _ssl.__file__)]
    assert find_libcrypto().functions.all()


def test_the_newest_of_all_places_is_taken() -> None:
    numbers = []
    for _, file in list(libcrypto._candidates()):
        with contextlib.suppress(OSError, Unusable):
            numbers.append(Libcrypto(ctypes.CDLL(file)).number)
    assert find_libcrypto().number == max(numbers) >= 3 << 28


def test_a_wrong_answer_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    library = find_libcrypto()._library
    monkeypatch.setattr(libcrypto, "_TEST_TAG", bytes(16))
    with pytest.raises(Unusable, match="AES-GCM gives a wrong answer"):
        Libcrypto(library)


def test_a_cipher_that_is_refused_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_libcrypto()

    class Refusing:
        """A library whose policy has no AES-128-GCM."""

        def __getattr__(self, name: str) -> Any:
            if name == "EVP_aes_128_gcm":
                return _NoCipher()
            return getattr(found._library, name)

    with pytest.raises(Unusable, match="aes-128-gcm is not available"):
        Libcrypto(Refusing())


class _NoCipher:
    argtypes: Any = ()
    restype: Any = None

    def __call__(self) -> None:
        return None


def run_python(source: str, **environment: str) -> str:
    """The output of a program in a process of its own. It must succeed."""
    run = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_nothing_is_allocated_for_a_packet() -> None:
    """In a process whose libcrypto allocates by functions of ours from its first byte on."""
    shown = run_python(COUNT_ALLOCATIONS)
    if shown == "in use already":
        pytest.skip("this libcrypto allocated something when it was loaded")
    at_first, later = map(int, shown.split())
    assert at_first > 0, "the counter counts nothing"
    assert later == 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names features of x86")
def test_masked_features_change_speed_alone() -> None:
    """Neither AES-NI nor PCLMULQDQ nor AVX: libcrypto falls back to plain code by itself."""
    run_python(SELF_TEST, OPENSSL_ia32cap="~0x1200020200000000:0")
