"""An engine with a Kafka endpoint in this process, a bare client, and record batches as bytes."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tidecast.config.kafka import KafkaConfig
from tidecast.config.store import TopologyStore
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.kafka import record_kernels
from tidecast.kafka.schemas import tables
from tidecast.kafka.server import KafkaEndpoint
from tidecast.kafka.wire import Reader, Struct, Writer
from tidecast.node.administration import Administration

TIMEOUT_S = 20.0
Header = tuple[str, bytes | None]
Record = tuple[bytes | None, bytes | None, list[Header]]


def varint(value: int) -> bytes:
    """A number as records have it."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(raw: bytes | None) -> bytes:
    return varint(-1) if raw is None else varint(len(raw)) + raw


def record(i: int, key: bytes | None, value: bytes | None, headers: Iterable[Header] = ()) -> bytes:
    """One record of a batch, the ``i``-th, at the batch's time."""
    listed = list(headers)
    body = b"\0" + varint(0) + varint(i) + _field(key) + _field(value) + varint(len(listed))
    body += b"".join(_field(name.encode()) + _field(given) for name, given in listed)
    return varint(len(body)) + body


def batch(
    records: bytes,
    count: int,
    *,
    producer: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    time_ms: int = 1_700_000_000_000,
    attributes: int = 0,
    magic: int = 2,
    crc: int | None = None,
    offset: int = 0,
) -> bytes:
    """A record batch v2 with these bytes of records."""
    rest = struct.pack(
        ">hiqqqhii", attributes, count - 1, time_ms, time_ms, producer, epoch, sequence, count
    )
    data: Any = np.frombuffer(rest + records, dtype=np.uint8)
    found = int(record_kernels.checksum(data, 0, data.size)) if crc is None else crc
    return struct.pack(">qiibI", offset, 9 + data.size, 0, magic, found) + data.tobytes()


def batch_of(*values: bytes | None, **header: Any) -> bytes:
    """A batch of records without keys."""
    records = b"".join(record(i, None, value) for i, value in enumerate(values))
    return batch(records, len(values), **header)


class Bare:
    """A connection that sends the given requests."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self._file = self.socket.makefile("rb")
        self._next = 0

    def send(self, key: int, version: int, body: Struct) -> int:
        """A request; its correlation id."""
        writer = Writer()
        self._next += 1
        writer.tail.extend(struct.pack(">hhi", key, version, self._next))
        writer.tail.extend(struct.pack(">h", 4) + b"bare")
        if tables.APIS[key].is_flexible(version):
            writer.tail.append(0)
        tables.request_writer(key, version)(writer, body)
        raw = b"".join(writer.done())
        self.socket.sendall(struct.pack(">i", len(raw)) + raw)
        return self._next

    def raw_answer(self) -> bytes:
        """The next answer without its length; b"" when the endpoint has closed."""
        head = self._file.read(4)
        return self._file.read(struct.unpack(">i", head)[0]) if len(head) == 4 else b""

    def answer(self, key: int, version: int) -> tuple[int, Struct]:
        """(correlation id, body) of the next answer."""
        reader = Reader(self.raw_answer())
        correlation = struct.unpack_from(">i", reader.data, reader.take(4))[0]
        if tables.APIS[key].is_flexible(version) and key != tables.API_VERSIONS:
            reader.skip_tags()
        found = tables.answer_reader(key, version)(reader)
        assert reader.at == reader.end
        return correlation, found

    def ask(self, key: int, version: int, body: Struct) -> Struct:
        """The answer to a request."""
        number = self.send(key, version, body)
        correlation, found = self.answer(key, version)
        assert correlation == number
        return found

    def log_in(self, user: str, secret: str) -> int:
        """SASL/PLAIN; the error code."""
        assert self.ask(tables.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})["error_code"] == 0
        raw = f"\0{user}\0{secret}".encode()
        return int(self.ask(tables.SASL_AUTHENTICATE, 1, {"auth_bytes": raw})["error_code"])

    def produce(self, topic: str, partition: int, records: bytes | None, **body: Any) -> Struct:
        """The verdict of one batch."""
        answer = self.ask(tables.PRODUCE, 7, produce_body(topic, partition, records, **body))
        found: Struct = answer["responses"][0]["partition_responses"][0]
        return found

    def fetch(self, topic: str, partition: int, offset: int, **body: Any) -> Struct:
        """One partition of a Fetch's answer."""
        answer = self.ask(tables.FETCH, 11, fetch_body(topic, partition, offset, **body))
        found: Struct = answer["responses"][0]["partitions"][0]
        return found

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self.socket.close()


def produce_body(topic: str, partition: int, records: bytes | None, **body: Any) -> Struct:
    """A request to Produce one batch."""
    partitions = [{"index": partition, "records": records}]
    topics = [{"name": topic, "partitions": partitions}]
    return {"acks": -1, "timeout_ms": 10_000, "topics": topics} | body


def fetch_body(
    topic: str,
    partition: int,
    offset: int,
    *,
    bytes_max: int = 1 << 20,
    epoch: int = -1,
    **body: Any,
) -> Struct:
    """A request to Fetch from one partition."""
    asked = {
        "partition": partition,
        "fetch_offset": offset,
        "partition_max_bytes": bytes_max,
        "current_leader_epoch": epoch,
    }
    topics = [{"topic": topic, "partitions": [asked]}]
    return {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 24, "topics": topics} | body


def administration_of(node: Any) -> Administration:
    """The administration of a node's topics, without a topology file."""
    return Administration(node, TopologyStore(node.topology, None))


class Served:
    """A node with durable topics, and its endpoint."""

    def __init__(
        self,
        directory: Path,
        topics: list[dict[str, Any]],
        *,
        keys: Sequence[Any] = (),
        transports: Sequence[Any] = (),
        listen: str = ":0",
        **config: Any,
    ) -> None:
        settings = {
            "transports": [{"name": "ipc", "kind": "ipc"}, *transports],
            "topics": topics,
            "keys": [msgspec.to_builtins(each) for each in keys],
        }
        self.link = EmbeddedLink.open(topology_from(settings), data_dir=directory, name="host")
        self.endpoint = KafkaEndpoint(
            self.link.node, administration_of(self.link.node), KafkaConfig(listen=listen, **config)
        )
        self.endpoint.start()

    @staticmethod
    def endpoint_of(link: EmbeddedLink, listen: str) -> KafkaEndpoint:
        """One more endpoint of a node, started."""
        made = KafkaEndpoint(link.node, administration_of(link.node), KafkaConfig(listen=listen))
        made.start()
        return made

    def bare(self) -> Bare:
        """A connection to it."""
        return Bare(self.endpoint.port)

    def close(self) -> None:
        """End both."""
        self.endpoint.stop()
        self.link.close()
