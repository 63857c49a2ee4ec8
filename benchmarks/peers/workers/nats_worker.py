"""One process of the NATS core benches over nats-py, message by message; ask and reply: requests.

Started as `python nats_worker.py CONFIG_JSON`. The subscriber takes messages in a callback with no
limit on what is pending, so that nothing is dropped in the client. NATS core has no flow control:
the publisher flushes (one round trip to the server) every `flush_every` messages.
"""

import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import nats
import uvloop

import report

SUBJECT_OUT = "bench.out"
SUBJECT_BACK = "bench.back"
DONE = threading.Event()


async def publish(client: Any, given: dict[str, Any], end: float) -> None:
    report.ready()
    messages = report.cycle_of_messages(given["message_bytes"])
    step = given["flush_every"]
    cycles = 0
    while not DONE.is_set() and time.monotonic() < end:
        for start in range(0, len(messages), step):
            for message in messages[start : start + step]:
                await client.publish(SUBJECT_OUT, message)
            await client.flush()
        cycles += 1
    report.result(offered=cycles * len(messages))


class Window:
    """Counts messages in a callback; opens after the warm-up that the first message starts."""

    def __init__(self, warmup_s: float, seconds: float) -> None:
        self.warmup_s, self.seconds = warmup_s, seconds
        self.count = self.first = self.last = 0
        self.opens = self.start = 0.0
        self.closed = asyncio.Event()
        self.elapsed_ns = 0

    async def on_message(self, message: Any) -> None:
        self.count += 1
        if self.count % 64:
            return
        now = time.monotonic()
        if not self.opens:
            self.opens = now + self.warmup_s
        elif not self.start and now >= self.opens:
            self.start, self.count = now, 0
            self.first = int.from_bytes(message.data[:8], "little")
        elif self.start and now - self.start >= self.seconds and not self.closed.is_set():
            self.elapsed_ns = int((now - self.start) * 1e9)
            self.last = int.from_bytes(message.data[:8], "little")
            self.received = self.count
            self.closed.set()


async def subscribe(client: Any, given: dict[str, Any], end: float) -> None:
    window = Window(given["warmup_s"], given["seconds"])
    await client.subscribe(
        SUBJECT_OUT, cb=window.on_message, pending_msgs_limit=-1, pending_bytes_limit=-1
    )
    await client.flush()
    report.ready()
    await asyncio.wait_for(window.closed.wait(), end - time.monotonic())
    report.result(
        received=window.received,
        elapsed_ns=window.elapsed_ns,
        lost=(window.last - window.first - window.received) % report.CYCLE,
        duplicated=0,
    )


async def ping(client: Any, given: dict[str, Any], end: float) -> None:
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[None]] = []

    async def on_reply(_message: Any) -> None:
        waiting.pop().set_result(None)

    await client.subscribe(SUBJECT_BACK, cb=on_reply)
    await client.flush()

    async def once(message: bytes) -> None:
        reply = loop.create_future()
        waiting.append(reply)
        await client.publish(SUBJECT_OUT, message)
        await reply

    await round_trips(once, given, end)


async def ask(client: Any, given: dict[str, Any], end: float) -> None:
    async def once(message: bytes) -> None:
        await client.request(SUBJECT_OUT, message, timeout=5)

    await round_trips(once, given, end)


async def round_trips(once: Any, given: dict[str, Any], end: float) -> None:
    report.ready()
    await asyncio.sleep(0.2)
    clock = time.perf_counter_ns
    message = bytes(given["message_bytes"])
    rtt_ns: list[int] = []
    started = clock()
    for round_number in range(given["warmup_rounds"] + given["rounds"]):
        sent = clock()
        await once(message)
        got = clock()
        if round_number >= given["warmup_rounds"]:
            if not rtt_ns:
                started = sent
            rtt_ns.append(got - sent)
        if (rtt_ns and got - started > given["seconds"] * 1e9) or time.monotonic() > end:
            break
    report.result(rounds_done=len(rtt_ns), **report.percentiles(rtt_ns))


async def reply(client: Any, _given: dict[str, Any], end: float) -> None:
    async def on_request(message: Any) -> None:
        await message.respond(message.data)

    await client.subscribe(SUBJECT_OUT, queue="responders", cb=on_request)
    await client.flush()
    report.ready()
    await asyncio.to_thread(DONE.wait, end - time.monotonic())


async def pong(client: Any, _given: dict[str, Any], end: float) -> None:
    async def on_message(message: Any) -> None:
        await client.publish(SUBJECT_BACK, message.data)

    await client.subscribe(SUBJECT_OUT, cb=on_message)
    await client.flush()
    report.ready()
    await asyncio.to_thread(DONE.wait, end - time.monotonic())


async def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    threading.Thread(
        target=lambda: (os.read(sys.stdin.fileno(), 1), DONE.set()), daemon=True
    ).start()
    end = time.monotonic() + given["deadline_s"]
    client = await nats.connect(given["channel"], pending_size=16 * 1024 * 1024)
    report.pin(given["core"])
    role = {
        "pub": publish,
        "sub": subscribe,
        "ping": ping,
        "pong": pong,
        "ask": ask,
        "reply": reply,
    }[given["role"]]
    await role(client, given, end)
    await client.close()


if __name__ == "__main__":
    if json.loads(sys.argv[1])["loop"] == "uvloop":
        uvloop.run(main())
    else:
        asyncio.run(main())
