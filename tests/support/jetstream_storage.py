"""The records in the streams of a stored topic, as a client of NATS reads them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.nats_server import NatsServer
from tidecast.jetstream.adapter import JetStreamAdapter
from tidecast.queues.adapter import unpack

READ_S = 20.0


def url(server: NatsServer, settings: str = "") -> str:
    """Where its streams are."""
    return f"jetstream://{server.address}/ORDERS{settings}"


def stored(server: NatsServer, queues: int = 2, name: str = "ORDERS") -> list[list[bytes]]:
    """The payloads in each stream."""

    async def read(_: Any, js: Any) -> list[list[bytes]]:
        found = list[list[bytes]]()
        for queue in range(queues):
            subject = f"{name}_{queue}.record.*"
            info = await js.stream_info(f"{name}_{queue}", subjects_filter=subject)
            wanted = sum((info.state.subjects or {}).values())
            rows: list[bytes] = []
            if wanted:
                reader = await js.subscribe(subject, ordered_consumer=True)
                while len(rows) < wanted:
                    rows.append((await reader.next_msg(timeout=READ_S)).data)
                await reader.unsubscribe()
            found.append(rows)
        return found

    return list(server.do(read))


def last_sequence(server: NatsServer, stream: str) -> int:
    """Of a stream."""
    info = server.do(lambda _, js: js.stream_info(stream))
    return int(info.state.last_seq)


def read_by_adapter(server: NatsServer, queues: int, name: str = "ORDERS") -> list[list[bytes]]:
    """The same of many records: nats-py makes an object for each."""
    streams = ",".join(f"{name}_{queue}" for queue in range(queues))
    adapter = JetStreamAdapter.of(f"jetstream://{server.address}/{streams}")
    found, buffer = list[list[bytes]](), np.empty(8 << 20, dtype=np.uint8)
    try:
        for queue in range(queues):
            receiver, rows = adapter.receiver(queue), list[bytes]()
            token, end = receiver.earliest(), receiver.latest()
            while token < end:
                got = receiver.receive(token, buffer, READ_S)
                rows += [record.payload for _, record in unpack(buffer[: got.bytes])]
                token = got.next_token
            found.append(rows)
    finally:
        adapter.close()
    return found
