"""The mutation fuzzer of the receive path; `python -m tests.fuzz.run_fuzz` runs it for long.

A small network carries a real stream while a stranger throws packets into the inboxes of both
nodes, data and control: sound ones of its own, replayed, truncated, with flipped bits, spliced, of
another size. Whatever adds a new pattern of counters to what was seen is kept in the corpus, from
which later rounds mutate. The stream must arrive whole, nothing may be raised.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import struct
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tests.support import packets as packet_builder
from tests.support.sealed_network import sealed_node
from tests.support.simulation import Reader, Stream

from tidecast.layout import packet as wire
from tidecast.layout.counters import Counter
from tidecast.layout.sealed import SEAL_BYTES, SEALED_VERSION
from tidecast.testing import Network, SimulatedNode
from tidecast.testing.switch import Packet

CORPUS = Path(__file__).parent / "corpus"
STRANGER = 999
PACKET_BYTES = 1400
COUNTERS = [
    Counter[name]
    for name in (
        "INVALID_SHORT", "INVALID_VERSION", "INVALID_TYPE", "INVALID_FIELD", "FILTERED",
        "UNKNOWN_SESSION", "STALE_SESSION", "DUPLICATES", "OVERRUNS", "LOSSES", "LOST_FOR_GOOD",
        "GAP_TABLE_FULL", "NAKS_RECEIVED", "NAKS_TOO_LATE", "STATUS_RECEIVED", "RECEIVERS_REFUSED",
        "HEARTBEATS_RECEIVED", "SETUPS_RECEIVED", "LATE", "OPENED", "TAG_FAILED", "REPLAYED",
        "UNKNOWN_KEY", "PLAIN_REFUSED", "INVALID_AREA", "COMPACTED", "TABLE_MISSING",
    )
]  # fmt: skip


def seeds() -> list[bytes]:
    """Sound packets of every type, and some that are sound but bold."""
    top = (1 << 60) - 1
    sealed = packet_builder.data(packet_builder.message(b"hello"), version=SEALED_VERSION, source=1)
    head, body = sealed[: wire.PACKET_HEADER_BYTES], sealed[wire.PACKET_HEADER_BYTES :]
    return [
        head + struct.pack("<IBBHqq", 1, 0, 1, 0, 77, 9) + body + bytes(16),
        head + struct.pack("<IBBHqq", 1, 7, 2, 1, -1, (1 << 56) - 1) + body + bytes(16),
        head + struct.pack("<IBBHqq", 0, 0xFF, 0xFF, 0xFFFF, 0, -1) + body + bytes(16),
        head,
        packet_builder.data(packet_builder.message(b"hello")),
        packet_builder.data(packet_builder.message(b"x" * 900), seq=3),
        packet_builder.data(
            packet_builder.message(b"part", wire.BEGIN, struct.pack("<q", 1 << 27))
        ),
        packet_builder.data(packet_builder.message(b"", wire.WHOLE | wire.KEY, b"\xff\xff")),
        packet_builder.data(b"\xff\xff\xff\x03"),
        packet_builder.data(seq=top),
        packet_builder.data(seq=1 << 31),
        packet_builder.definitions(b"\4keys\7more of", count=2),
        packet_builder.definitions(b"\7more of", first=1),
        packet_builder.compact(
            b"\x80\x81" * 3 + b"\x07" + packet_builder.message(b"what"), length=76
        ),
        packet_builder.compact(b"\x80" * 7 + b"\xf0\0", entries=0xFFFF, length=0xFFFF, seq=2),
        packet_builder.status(flags=wire.FLAG_TABLES),
        packet_builder.status(flags=wire.FLAG_WANT_TABLE),
        packet_builder.heartbeat(seq=9),
        packet_builder.heartbeat(seq=top),
        packet_builder.heartbeat(seq=0, flags=wire.FLAG_END),
        packet_builder.lost(seq=100),
        packet_builder.lost(seq=top),
        packet_builder.nak([(0, 1)]),
        packet_builder.nak([(0, 0xFFFFFFFF)]),
        packet_builder.nak([(i * 2, 1) for i in range(42)]),
        packet_builder.status(),
        packet_builder.status(flags=wire.FLAG_WANT_SETUP),
        packet_builder.status(flags=wire.FLAG_LEAVE),
        packet_builder.status(consumed=top, contiguous=top, window=0xFFFFFFFF),
        packet_builder.status(name=b"node"),
        packet_builder.status(receiver_id=98, name=b"\xff\x1b\0" * 66),
        packet_builder.setup(),
        packet_builder.setup(topic_name="nobody.wants"),
        packet_builder.setup(platform=bytes(8)),
        packet_builder.area_setup((1, bytes(8)), (9, b"abc"), platform=bytes(8)),
        packet_builder.area_setup(
            (1, bytes(8)), lead=packet_builder.block(), flags=wire.FLAG_PRODUCER
        ),
        packet_builder.area_setup(
            (1, bytes(8)), (2, b""), lead=packet_builder.block(), flags=wire.FLAG_PRODUCER
        ),
        packet_builder.durable_setup(packet_builder.block() + bytes(8), platform_len=8),
        packet_builder.setup(slots=1 << 20, packet_bytes=65_000, oldest=5, seq=9),
        packet_builder.setup(receivers=0xFFFF, round_trip=0xFFFF, sampling=20),
        packet_builder.ack(),
        packet_builder.ack(seq=top, state=-1),
        packet_builder.durable_setup(packet_builder.block()),
        packet_builder.durable_setup(
            packet_builder.block(line=1 << 31, after=9, older_ns=-1),
            flags=wire.FLAG_PRODUCER | wire.FLAG_LEFT,
        ),
    ]


class Fuzz:
    """One network, one stream, one stranger."""

    def __init__(self, seed: int, corpus: list[bytes], *, sealed: bool = False) -> None:
        self.random, self.sealed = random.Random(seed), sealed
        self.corpus = corpus
        self.net = Network(seed=seed, packet_bytes=PACKET_BYTES, step_us=50)
        # A receiver that does not exist may hold `min` flow back, until its time-out.
        small: dict[str, Any] = {
            "history_bytes": 64 << 10,
            "receive_bytes": 64 << 10,
            "receiver_timeout_s": 0.5,
        }
        node = partial(sealed_node, self.net) if sealed else self.net.node
        self.a = node("a", topics=["t"], **small)
        self.b = node("b", topics=["t", "unused"], **small)
        self.reader, self.stream = Reader(self.b), Stream(self.a, size=300)
        self.reader.session = self.stream.publisher.session  # a stranger may publish, too
        self.replay: list[bytes] = []
        self.net.intercept(self._listen)
        self.seen: set[bytes] = set()
        self.kept: list[bytes] = []
        self.go_on(20, 60_000)

    def close(self) -> None:
        self.net.close()

    def _listen(self, packet: Packet) -> None:
        self.replay = [*self.replay[-63:], packet.data]

    # --- packets ----------------------------------------------------------------------------------

    def packet(self) -> bytes:
        """The next one to throw."""
        r = self.random
        source = r.random()
        if source < 0.55:
            packet = r.choice(self.corpus)
        elif source < 0.9 and self.replay:
            packet = r.choice(self.replay)
        else:
            packet = r.randbytes(r.choice((0, 1, 8, 31, 32, 33, 72, 600, PACKET_BYTES)))
        for _ in range(r.choice((0, 1, 1, 2, 4))):
            packet = self.mutated(packet)
        return self.foreign(packet[: PACKET_BYTES + SEAL_BYTES])

    def mutated(self, packet: bytes) -> bytes:
        r = self.random
        raw = bytearray(packet)
        kind = r.randrange(7)
        if not raw:
            return r.randbytes(40)
        if kind == 0:
            raw[r.randrange(len(raw))] ^= 1 << r.randrange(8)
        elif kind == 1:
            return bytes(raw[: r.randrange(len(raw) + 1)])
        elif kind == 2:
            raw += r.randbytes(r.randrange(1, 64))
        elif kind == 3 and len(raw) >= 8:
            value = r.choice(
                (0, -1, 1 << 62, -(1 << 63), (1 << 31) - 1, 1 << 60, r.getrandbits(40))
            )
            struct.pack_into("<q", raw, r.randrange(len(raw) - 7), value)
        elif kind == 4 and len(raw) >= 32:
            other = r.choice(self.corpus)
            at = r.randrange(len(raw))
            raw = raw[:at] + bytearray(other[at:])
        elif kind == 5 and len(raw) >= 32:
            struct.pack_into("<H", raw, wire.LENGTH_AT, r.choice((0, 31, 32, len(raw), 65_535)))
        elif len(raw) >= 32:
            sessions = (0, 5, self.stream.publisher.session, r.getrandbits(32))
            struct.pack_into("<I", raw, wire.SESSION_AT, r.choice(sessions))
            struct.pack_into("<B", raw, wire.TYPE_AT, r.randrange(8))
        return bytes(raw)

    def foreign(self, packet: bytes) -> bytes:
        """No node can tell a forged plain packet of a live session from a true one: rename it.

        It carries no signature. True ones, replayed as they are, stay.
        """
        if self.sealed or len(packet) < wire.PACKET_HEADER_BYTES or packet in self.replay:
            return packet
        raw = bytearray(packet)
        source = struct.unpack_from("<H", raw, wire.SOURCE_AT)[0]
        if source in (self.a.id, self.b.id):
            struct.pack_into("<H", raw, wire.SOURCE_AT, STRANGER)
        return bytes(raw)

    def other(self, node: SimulatedNode) -> SimulatedNode:
        """Packets of its sessions are believed from its address alone."""
        return self.b if node is self.a else self.a

    # --- rounds -----------------------------------------------------------------------------------

    def go_on(self, messages: int, limit_us: float) -> None:
        """Publish some more; all of it must arrive, in order and once."""
        self.stream.count += messages

        def done() -> bool:
            self.stream.push()
            self.reader.take()
            return len(self.reader.found) >= self.stream.count

        arrived = self.net.run(limit_us, until=done)
        assert self.reader.found == self.stream.messages[: len(self.reader.found)]
        assert arrived, f"{len(self.reader.found)} of {self.stream.count} arrived"

    def _pattern(self) -> list[int]:
        return [n.count(c) for n in (self.a, self.b) for c in COUNTERS]

    def round(self, packets: int) -> None:
        """Throw packets, then see that the stream continues. Keeps what did something new."""
        before = self._pattern()
        thrown = []
        for _ in range(packets):
            packet = self.packet()
            thrown.append(packet)
            for node in (self.a, self.b):
                self.net.switch.inject(node.id, packet, source=self.other(node).id)
                self.net.switch.inject(node.id, packet, control=True)
        self.net.run(100)
        self.go_on(3, 20_000_000)
        moved = [min(3, (y - x).bit_length()) for x, y in zip(before, self._pattern(), strict=True)]
        mark = hashlib.blake2b(repr(moved).encode(), digest_size=8).digest()
        if packets == 1 and mark not in self.seen:
            self.seen.add(mark)
            self.kept.append(thrown[0])
            self.corpus.append(thrown[0])


def load_corpus() -> list[bytes]:
    return seeds() + [path.read_bytes() for path in sorted(CORPUS.glob("*.bin"))]


def run(seed: int, rounds: int, corpus: list[bytes], *, sealed: bool = False) -> Fuzz:
    """A fuzz run; the network is closed afterwards. ``sealed``: its transport requires seals."""
    fuzz = Fuzz(seed, corpus, sealed=sealed)
    try:
        for i in range(rounds):
            fuzz.round(1 if i % 4 else 20)
    finally:
        fuzz.close()
    return fuzz


def main() -> None:
    """Run for long; keep what is new."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=100)
    options.add_argument("--first-seed", type=int, default=0)
    options.add_argument("--rounds", type=int, default=400)
    options.add_argument("--keep", action="store_true", help="write new packets to the corpus")
    told = options.parse_args()
    corpus = load_corpus()
    for seed in range(told.first_seed, told.first_seed + told.seeds):
        fuzz = run(seed, told.rounds, corpus, sealed=bool(seed % 2))
        sys.stdout.write(f"seed {seed}: {len(fuzz.kept)} packets did something new\n")
        sys.stdout.flush()
        if told.keep:
            CORPUS.mkdir(exist_ok=True)
            for packet in fuzz.kept:
                name = hashlib.blake2b(packet, digest_size=8).hexdigest()
                (CORPUS / f"{name}.bin").write_bytes(packet)


if __name__ == "__main__":
    main()
