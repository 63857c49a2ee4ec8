"""A broker of Kafka in memory that misbehaves as told: a topic, and those made beside it.

It keeps batches as they came, and judges producers as Kafka does: the last five batches of each
producer and partition are known, others are out of order; a lower epoch is refused.
"""

from __future__ import annotations

import contextlib
import socketserver
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from tidecast.kafka.codes import Code
from tidecast.kafka.records import CONTROL, HEADER, BatchHead
from tidecast.kafka.schemas import tables
from tidecast.kafka.wire import Reader, Struct, Writer

RECENT = 5
SEQUENCES = 1 << 31


class Partition:
    """Batches as they came, by their base offset."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.end = 0
        self.producers: dict[int, tuple[int, deque[tuple[int, int, int]]]] = {}
        """By id: epoch, and (first sequence, last sequence, offset) of the latest batches."""

    def append(self, raw: bytes) -> tuple[int, int]:
        """(error code, base offset)."""
        head = BatchHead(*HEADER.unpack_from(raw))
        epoch, recent = self.producers.get(head.producer_id, (-1, deque(maxlen=RECENT)))
        first = head.base_sequence
        last = (first + head.last_offset_delta) % SEQUENCES
        if head.producer_epoch < epoch:
            return Code.INVALID_PRODUCER_EPOCH, -1
        if head.producer_epoch > epoch:
            recent = deque(maxlen=RECENT)
            due = 0
        else:
            known = next((x for x in recent if x[:2] == (first, last)), None)
            if known is not None:
                return Code.NONE, known[2]
            due = (recent[-1][1] + 1) % SEQUENCES if recent else 0
        if first != due:
            return Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        recent.append((first, last, self.end))
        self.producers[head.producer_id] = (head.producer_epoch, recent)
        self.batches.append((self.end, struct.pack(">q", self.end) + raw[8:]))
        self.end += head.records
        return Code.NONE, self.end - head.records

    def mark(self, producer: int, epoch: int) -> None:
        """A marker of a transaction: it takes an offset, and its epoch counts."""
        self.producers[producer] = (epoch, deque(maxlen=RECENT))
        control = HEADER.pack(self.end, 49, 0, 2, 0, 0x30, 0, 0, 0, producer, epoch, -1, 1)
        self.batches.append((self.end, control))
        self.end += 1

    def records(self) -> list[bytes]:
        """The batches that are no markers."""
        return [raw for _, raw in self.batches if not HEADER.unpack_from(raw)[5] & CONTROL]


class FakeBroker:
    """See module. ``faults``: what happens to the next Produce requests, see `drop` and others."""

    def __init__(self, topic: str, partitions: int = 1) -> None:
        self.topic = topic
        self.partitions = [Partition() for _ in range(partitions)]
        self.others: dict[str, list[Partition]] = {}
        """Topics beside it, that were made on request."""
        self.cuts: dict[int, int] = {}
        """By API key: so many requests end their connection before anything is done."""
        self.faults: deque[Callable[[Struct], str | int]] = deque()
        """Each gets a request, and returns ``lose`` (it is not seen), ``drop`` (done, and the
        connection ends without an answer), or a code that is answered without more."""
        self.produced = 0
        self.policy = "delete"
        """``cleanup.policy`` of the topic."""
        self.settings: dict[str, str] = {}
        """Other settings of the topic that it tells."""
        self.ids: dict[str, tuple[int, int]] = {}
        self.unfinished: dict[str, int] = {}
        """By transactional id: how often InitProducerId still has to wait for markers."""
        self.lock = threading.Lock()
        self.asked: list[int] = []
        """The API keys of all requests so far."""
        self.silent: set[int] = set()
        """Requests with these API keys get no answer before `speak`."""
        self._speaks = threading.Event()
        fake = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    fake._serve(self)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """End it."""
        self.speak()
        self._server.shutdown()
        self._server.server_close()

    def speak(self) -> None:
        """Answer all requests that wait for an answer."""
        self.silent.clear()
        self._speaks.set()

    def _serve(self, stream: Any) -> None:
        while True:
            head = stream.rfile.read(4)
            if len(head) < 4:
                return
            reader = Reader(stream.rfile.read(struct.unpack(">i", head)[0]))
            about = tables.read_header(reader)
            key, version = about["api_key"], about["api_version"]
            flexible = tables.KNOWN[key].is_flexible(version)
            tables.read_client_id(reader, flexible=flexible)
            body = tables.request_reader(key, version)(reader)
            self.asked.append(key)
            if key in self.silent:
                self._speaks.wait()
            with self.lock:
                if self.cuts.get(key, 0):
                    self.cuts[key] -= 1
                    return
                answer = self._answer(key, body)
            if answer is None:
                return
            writer = Writer()
            writer.tail.extend(struct.pack(">i", about["correlation_id"]))
            if flexible and key != tables.API_VERSIONS:
                writer.tail.append(0)
            tables.answer_writer(key, version)(writer, answer)
            raw = b"".join(writer.done())
            stream.wfile.write(struct.pack(">i", len(raw)) + raw)

    def _answer(self, key: int, body: Struct) -> Struct | None:
        if key == tables.API_VERSIONS:
            return {
                "api_keys": [
                    {"api_key": one.key, "min_version": one.first, "max_version": one.last}
                    for one in tables.KNOWN.values()
                ]
            }
        if key == tables.METADATA:
            return self._metadata(body["topics"][0]["name"])
        if key == tables.PRODUCE:
            return self._produce(body)
        if key == tables.FETCH:
            return self._fetch(body)
        if key == tables.LIST_OFFSETS:
            asked = body["topics"][0]["partitions"][0]
            row = asked["partition_index"]
            name = body["topics"][0]["name"]
            offset = 0 if asked["timestamp"] == -2 else self.of(name)[row].end
            found = {"partition_index": row, "offset": offset}
            return {"topics": [{"name": name, "partitions": [found]}]}
        if key == tables.DESCRIBE_CONFIGS:
            asked = body["resources"][0]["configuration_keys"]
            known = {"cleanup.policy": self.policy} | self.settings
            rows = [{"name": name, "value": known[name]} for name in asked if name in known]
            return {"results": [{"resource_name": self.topic, "configs": rows}]}
        if key == tables.CREATE_TOPICS:
            wanted = body["topics"][0]
            made = [Partition() for _ in range(wanted["num_partitions"])]
            if self.partitions:
                self.others[wanted["name"]] = made
            else:
                self.topic, self.partitions = wanted["name"], made
            return {"topics": [{"name": wanted["name"]}]}
        if key == tables.FIND_COORDINATOR:
            return {"node_id": 0, "host": "127.0.0.1", "port": self.port}
        return self._transaction(key, body)

    def of(self, topic: str) -> list[Partition]:
        """The partitions of a topic; none if there is no such topic."""
        return self.partitions if topic == self.topic else self.others.get(topic, [])

    def _metadata(self, name: str) -> Struct:
        rows = [
            {"partition_index": i, "leader_id": 0, "leader_epoch": 0}
            for i in range(len(self.of(name)))
        ]
        topics = [{"name": name, "partitions": rows}] if rows or name == self.topic else []
        return {
            "brokers": [{"node_id": 0, "host": "127.0.0.1", "port": self.port}],
            "topics": topics,
        }

    def _produce(self, body: Struct) -> Struct | None:
        assert body["acks"] == -1
        name = body["topics"][0]["name"]
        fault: str | int = 0
        if name == self.topic:
            self.produced += 1
            fault = self.faults.popleft()(body) if self.faults else 0
        if fault == "lose":
            return None
        row = body["topics"][0]["partitions"][0]
        code, offset = int(fault) if fault != "drop" else 0, -1
        if not code:
            code, offset = self.of(name)[row["index"]].append(bytes(row["records"]))
        if fault == "drop":
            return None
        verdict = {"index": row["index"], "error_code": code, "base_offset": offset}
        return {"responses": [{"name": name, "partition_responses": [verdict]}]}

    def _fetch(self, body: Struct) -> Struct:
        name, row = body["topics"][0]["topic"], body["topics"][0]["partitions"][0]
        here = self.of(name)[row["partition"]]
        raw = b"".join(
            each
            for base, each in here.batches
            if base + BatchHead(*HEADER.unpack_from(each)).records > row["fetch_offset"]
        )
        answer = {
            "partition_index": row["partition"],
            "records": raw,
            "high_watermark": here.end,
            "last_stable_offset": here.end,
        }
        return {"responses": [{"topic": name, "partitions": [answer]}]}

    def _transaction(self, key: int, body: Struct) -> Struct:
        name = body["transactional_id"]
        if key == tables.INIT_PRODUCER_ID:
            if self.unfinished.get(name, 0):
                self.unfinished[name] -= 1
                return {"error_code": Code.CONCURRENT_TRANSACTIONS}
            producer, epoch = self.ids.get(name, (1000 + len(self.ids), -1))
            self.ids[name] = producer, epoch + 1
            return {"producer_id": producer, "producer_epoch": epoch + 1}
        who = body["producer_id"], body["producer_epoch"]
        if who != self.ids.get(name):
            code = Code.PRODUCER_FENCED
        else:
            code = Code.NONE
            if key == tables.END_TXN:
                for each in [self.partitions, *self.others.values()]:
                    for one in each:
                        one.mark(*who)
                self.unfinished[name] = 2
        if key == tables.END_TXN:
            return {"error_code": code}
        rows = [
            {"partition_index": i, "partition_error_code": code}
            for i in range(len(self.partitions))
        ]
        return {"results": [{"name": self.topic, "results_by_partition": rows}]}


def drop(body: Struct) -> str:
    """The batch is stored, and its answer is lost."""
    del body
    return "drop"


def lose(body: Struct) -> str:
    """The connection ends before the batch is stored."""
    del body
    return "lose"


def refuse(code: int) -> Callable[[Struct], int]:
    """It is answered with an error."""
    return lambda body: code
