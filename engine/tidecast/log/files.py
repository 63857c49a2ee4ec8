"""Files of a queue: names, headers, index entries; from Python, where speed does not matter."""

from __future__ import annotations

import hashlib
import os
import re
import struct
from pathlib import Path

import numpy as np

from tidecast.layout import segment as lay
from tidecast.native.crc32c import crc32c
from tidecast.native.jit import kernel

MAP_NAME = "map.json"
"""A topic's map of queues, in its directory."""
_HEADER = struct.Struct("<QIIqqQ")


@kernel
def _crc(data, n):
    return crc32c(data, 0, n)


def checksum(raw: bytes) -> int:
    """CRC32C of bytes."""
    array = np.frombuffer(raw, dtype=np.uint8).copy()
    return int(_crc(array, array.size))


def queue_directory(data_dir: Path, topic: str, queue: int) -> Path:
    """The directory of a queue's log."""
    return data_dir / "queues" / topic / queue_name(queue)


def queue_name(queue: int) -> str:
    """Name of a queue's directory in its topic's."""
    return f"{queue:05d}"


def segment_name(base_token: int) -> str:
    """File name of the segment whose first token this is."""
    return f"{base_token:020d}.log"


def index_name(base_token: int) -> str:
    """File name of its sparse index."""
    return f"{base_token:020d}.index"


def unsynced_name(base_token: int) -> str:
    """File that exists while a segment holds bytes that a failed sync should have stored."""
    return f"{base_token:020d}.unsynced"


def snapshot_name(base_token: int) -> str:
    """File name of the table of producers at the begin of a segment."""
    return f"{base_token:020d}.producers"


_SEAL = re.compile(rb'(\{.*?),?"crc32c":(\d+)\}\s*', re.DOTALL)

_LAST_MEMBER = re.compile(rb'"([^"]{6})":\d+\}\s*$')


def seal_json(content: bytes) -> bytes:
    """A JSON object with a last member ``crc32c``: the checksum of the object without it."""
    comma = b"" if content == b"{}" else b","
    return b'%s%s"crc32c":%d}' % (content[:-1], comma, checksum(content))


def open_json(raw: bytes) -> bytes:
    """The content of a sealed object; an object of an old build, without a seal, unchanged.

    Raises ValueError when the checksum, or its name, is wrong.
    """
    sealed = _SEAL.fullmatch(raw)
    if sealed is None:
        name = _LAST_MEMBER.search(raw)
        if name is not None and sum(a != b for a, b in zip(name[1], b"crc32c", strict=True)) == 1:
            raise ValueError("the name of its checksum is wrong")
        return raw
    content = sealed[1] + b"}"
    if checksum(content) != int(sealed[2]):
        raise ValueError("its checksum is wrong")
    return content


def topic_digest(topic: str) -> int:
    """The digest of a topic in a segment's header."""
    return int.from_bytes(hashlib.blake2b(topic.encode(), digest_size=8).digest(), "little")


def segment_header(topic: str, queue: int, base_token: int, created_ns: int) -> bytes:
    """The first 64 bytes of a segment."""
    raw = _HEADER.pack(
        lay.SEGMENT_MAGIC, lay.SEGMENT_VERSION, queue, base_token, created_ns, topic_digest(topic)
    )
    raw = raw.ljust(lay.SEG_CRC_AT, b"\0")
    return raw + struct.pack("<I", checksum(raw))


def index_header(segment_head: bytes) -> bytes:
    """The first 64 bytes of the index of the segment that begins with ``segment_head``."""
    raw = struct.pack("<Q", lay.INDEX_MAGIC) + segment_head[8 : lay.SEG_CRC_AT]
    return raw + struct.pack("<I", checksum(raw))


def check_segment_header(head: bytes, base_token: int, topic: str, queue: int) -> str:
    """The defect in the first bytes of a segment, or ""."""
    if len(head) < lay.SEGMENT_HEADER_BYTES:
        return f"{len(head)} bytes, shorter than a header"
    magic, version, of_queue, base, _, digest = _HEADER.unpack_from(head)
    (crc,) = struct.unpack_from("<I", head, lay.SEG_CRC_AT)
    if crc != checksum(head[: lay.SEG_CRC_AT]) or magic != lay.SEGMENT_MAGIC:
        return "its header is damaged"
    if version != lay.SEGMENT_VERSION:
        return f"version {version}: this build reads version {lay.SEGMENT_VERSION}"
    if base != base_token:
        return f"its header says token {base}, its name {base_token}"
    if of_queue != queue or digest != topic_digest(topic):
        return f"it belongs to queue {of_queue} of another topic or queue, not to {topic}/{queue}"
    return ""


def index_entry(token: int, position: int, time_ns: int) -> bytes:
    """One entry of a sparse index."""
    raw = struct.pack("<qqq", token, position, time_ns)
    return raw + struct.pack("<II", checksum(raw), 0)


def read_index(path: Path, tail: int = 0) -> np.ndarray:
    """Sound entries, int64[n, 3]: token, position, time; ``tail``: only the last so many."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            n = max(0, size - lay.SEGMENT_HEADER_BYTES) // lay.INDEX_ENTRY_BYTES
            first = max(0, n - tail) if tail else 0
            file.seek(lay.SEGMENT_HEADER_BYTES + first * lay.INDEX_ENTRY_BYTES)
            raw = file.read((n - first) * lay.INDEX_ENTRY_BYTES)
    except FileNotFoundError:
        raw = b""
    found = []
    for at in range(0, len(raw) - lay.INDEX_ENTRY_BYTES + 1, lay.INDEX_ENTRY_BYTES):
        entry = raw[at : at + lay.IDX_CRC_AT]
        (crc,) = struct.unpack_from("<I", raw, at + lay.IDX_CRC_AT)
        if crc != checksum(entry):
            break
        found.append(struct.unpack("<qqq", entry))
    return np.array(found, dtype=np.int64).reshape(-1, 3)
