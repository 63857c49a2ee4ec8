"""The fuzzer of the Kafka endpoint; `python -m tests.fuzz.kafka` runs it for long.

Strangers send requests to an endpoint without keys: of each API and version, with bold values, and
with record batches that are sound, damaged or decompress to more than is allowed. Requests are cut
off and have bytes changed. Strangers leave without reading answers, amid a request, or while a
group waits for them. Beside them a sound client produces and consumes: it must get what it sent,
and the endpoint must hold nothing of those that are gone.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import random
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cramjam
from tests.support.kafka import Served, batch, batch_of, record

from tidecast.kafka.compression import BYTES_MAX
from tidecast.kafka.schemas import tables
from tidecast.kafka.schemas.api import Api
from tidecast.kafka.wire import Field, Struct, Writer
from tidecast.layout.counters import KafkaCounter

TOPICS = [
    {"name": name, "mode": "durable", "queues": 2, "fsync_interval_ms": 2}
    for name in ("sound", "prey", "other")
]
NAMES = ("prey", "other", "fresh", "missing", "", "a b", "x" * 300, "\u00e9", "group", "consumer")
"""Never the topic of the sound client: anybody may delete one."""
NUMBERS = (0, 1, -1, 2, 3, 7, 100, 255, -(1 << 15), (1 << 15) - 1, -(1 << 31), (1 << 31) - 1,
           (1 << 62), -(1 << 63), (1 << 63) - 1)  # fmt: skip
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
PATIENCE_S = 20.0


def _bombs() -> list[bytes]:
    """Record batches of some KiB that decompress to more than is allowed."""
    plain = bytes(BYTES_MAX + 1)
    packed = {
        1: gzip.compress(plain, 1),
        2: bytes(cramjam.snappy.compress_raw(plain)),
        3: bytes(cramjam.lz4.compress(plain)),
        4: bytes(cramjam.zstd.compress(plain)),
    }
    return [batch(each, 1, attributes=codec) for codec, each in packed.items()]


def batches() -> list[bytes]:
    """Record batches that are sound, and some that are not."""
    return [
        batch_of(b"a"),
        batch_of(b"a", None, bytes(3000)),
        batch(record(0, b"key", b"v", [("h", None), ("h", b"x")]), 1),
        batch_of(b"a", producer=5, epoch=0, sequence=0),
        batch_of(b"a", time_ms=1 << 60),
        batch(b"\xff" * 40, 3),
        batch(record(0, None, b"v"), (1 << 31) - 1),
        batch_of(b"a", magic=1),
        batch(gzip.compress(record(0, None, b"v")), 1, attributes=1),
        b"",
    ]


class KafkaFuzz:
    """One endpoint, one sound client, many strangers."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.random = random.Random(seed)
        self.served = Served(directory, TOPICS, frame_s=1)
        self.sound = self.served.bare()
        self.sent: list[bytes] = []
        self.batches, self.bombs = batches(), _bombs()
        self.strangers = 0

    def close(self) -> None:
        self.sound.close()
        self.served.close()

    # --- requests ---------------------------------------------------------------------------------

    def value(self, field: Field, version: int) -> Any:
        """Something for a field: of its type, and often out of its meaning."""
        r = self.random
        if field.array:
            if field.nullable and r.random() < 0.2:
                return None
            return [self.item(field, version) for _ in range(r.choice((0, 1, 1, 2, 3)))]
        return self.item(field, version)

    def item(self, field: Field, version: int) -> Any:
        r, kind = self.random, field.kind
        if not isinstance(kind, str):
            return self.body(kind, version)
        if kind in _BITS:
            half = 1 << (_BITS[kind] - 1)
            return r.choice([n for n in NUMBERS if -half <= n < half])
        if kind == "bool":
            return r.random() < 0.5
        if kind.endswith("string"):
            return None if kind == "nstring" and r.random() < 0.5 else r.choice(NAMES)
        if kind == "records" and r.random() < 0.02:
            return r.choice(self.bombs)
        if kind == "records":
            return r.choice([None, *self.batches, self.mutated(r.choice(self.batches))])
        return r.randbytes(r.choice((0, 1, 5, 40, 400)))

    def body(self, fields: tuple[Field, ...], version: int) -> Struct:
        return {each.name: self.value(each, version) for each in fields if each.in_version(version)}

    def request(self, api: Api) -> bytes:
        """A request of an API, with its length."""
        version = self.random.randint(api.first, api.last)
        writer = Writer()
        head = struct.pack(">hhihs", api.key, version, self.random.getrandbits(31), 1, b"f")
        writer.tail.extend(head)
        if api.is_flexible(version):
            writer.tail.append(0)
        tables.request_writer(api.key, version)(writer, self.body(api.request, version))
        raw = b"".join(writer.done())
        return struct.pack(">i", len(raw)) + raw

    def mutated(self, raw: bytes) -> bytes:
        r = self.random
        changed = bytearray(raw)
        for _ in range(r.choice((1, 1, 2, 5))):
            kind = r.randrange(4)
            if not changed:
                return r.randbytes(20)
            at = r.randrange(len(changed))
            if kind == 0:
                changed[at] ^= 1 << r.randrange(8)
            elif kind == 1:
                changed[at:] = b""
            elif kind == 2:
                changed[at:at] = r.randbytes(r.choice((1, 4, 30)))
            elif len(changed) - at >= 4:
                struct.pack_into(">i", changed, at, r.choice((-1, 0, (1 << 31) - 1, 65_537)))
        return bytes(changed)

    def sends(self) -> bytes:
        """The bytes of an unknown client: some requests, the last ones perhaps damaged."""
        r = self.random
        raw = b"".join(
            self.request(r.choice(list(tables.APIS.values()))) for _ in range(r.randint(1, 6))
        )
        choice = r.random()
        if choice < 0.3:
            raw = self.mutated(raw)
        elif choice < 0.4:
            raw = r.randbytes(r.choice((1, 3, 4, 12, 200)))
        return raw

    # --- rounds -----------------------------------------------------------------------------------

    def stranger(self) -> None:
        """Connect, send, read some answers or none, and go."""
        self.strangers += 1
        bare = self.served.bare()
        bare.socket.settimeout(0.02 if self.random.random() < 0.5 else 0.001)
        with contextlib.suppress(OSError):
            bare.socket.sendall(self.sends())
            for _ in range(3):
                if not bare.raw_answer():
                    break
        bare.close()

    def round(self) -> None:
        """Some strangers, then the sound client."""
        for _ in range(10):
            self.stranger()
        value = b"%d" % len(self.sent)
        row = self.sound.produce("sound", 0, batch_of(value))
        assert (row["error_code"], row["base_offset"]) == (0, len(self.sent)), row
        self.sent.append(value)
        found = self.sound.fetch("sound", 0, len(self.sent) - 1, max_wait_ms=5000)
        assert found["error_code"] == 0
        assert value in bytes(found["records"])
        assert self.served.endpoint.counters.of("faults") == 0

    def settled(self) -> None:
        """Wait until nothing is held for strangers any more."""
        endpoint, ends_s = self.served.endpoint, time.monotonic() + PATIENCE_S
        while not self.is_settled():
            self.sound.ask(tables.API_VERSIONS, 0, {})
            assert time.monotonic() < ends_s, (
                endpoint.counters.of(KafkaCounter.OPEN.name.lower()),
                endpoint.answers.used,
                endpoint.producing.waiting_bytes,
            )

    def is_settled(self) -> bool:
        """The sound client's connection is the only one, and no room is held."""
        endpoint = self.served.endpoint
        return (
            endpoint.counters.of(KafkaCounter.OPEN.name.lower()) == 1
            and endpoint.answers.used == 0
            and endpoint.producing.waiting_bytes == 0
        )


def main() -> None:
    """Run until the time is over, or something breaks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    asked = parser.parse_args()
    sys.stdout.write(f"seed {asked.seed}\n")
    ends_s = time.monotonic() + asked.seconds
    with tempfile.TemporaryDirectory() as directory:
        fuzz = KafkaFuzz(asked.seed, Path(directory))
        while time.monotonic() < ends_s:
            fuzz.round()
        fuzz.settled()
        sys.stdout.write(f"{fuzz.strangers} strangers, {len(fuzz.sent)} rounds\n")
        fuzz.close()


if __name__ == "__main__":
    main()
