"""Commands of the control service: counters, flight recorder, browse, tail, publish, durable ones.

Every command has bounds of its own: messages, bytes, seconds.
"""

from __future__ import annotations

import base64
import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidecast.api.start import Earliest, Latest
from tidecast.buffers.recorder import Record, read_records
from tidecast.client.blocking import Subscription
from tidecast.client.core.message import Message
from tidecast.control_link import browse
from tidecast.errors import ConfigError, NotFound, TidecastError, Timeout
from tidecast.layout.recorder import MEANING, Code
from tidecast.native.mapped import MappedFile
from tidecast.node.consumers.redrive import redrive_pages
from tidecast.telemetry.views import connect_inside, sample

if TYPE_CHECKING:
    from tidecast.node.node import Node

BROWSE_MESSAGES_MAX, BROWSE_SCANNED_MAX = 200, 100_000
BROWSE_S_MAX, TAIL_INTERVAL_S = 5.0, 0.25
TAIL_MESSAGES_MAX = 50
PAYLOAD_BYTES_MAX = 64 * 1024
RECORDS_MAX = 1000
STREAMS_MAX = 32

Shown = Callable[[str], bool]
"""Whether messages published on a node are shown."""
Send = Callable[[dict[str, Any]], None]


class Unsupported(TidecastError):
    """The engine of this version cannot do that."""

    code = "not_implemented"


class Commands:
    """Runs commands on threads of the link's pool; ``send`` carries what streams produce."""

    def __init__(self, node: Node, send: Send, traffic: Callable[[], dict[str, Any]]) -> None:
        self._node, self._send, self._traffic = node, send, traffic
        self._streams: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, command_id: str, name: str, args: dict[str, Any]) -> Any:
        """Run one command; its value. Raises TidecastError."""
        match name:
            case "sample":
                return sample(self._node, time.time_ns()) | {"traffic": self._traffic()}
            case "counters":
                return {"node": self._node.name, "at_ns": time.time_ns(),
                        "counters": self._node.stats()}  # fmt: skip
            case "recorder":
                return self._recorder(int(args["limit"]), str(args["section"]))
            case "browse":
                return self._browse(args)
            case "tail":
                return self._tail(command_id, str(args["topic"]), self._shown(args))
            case "publish":
                return self._publish(args)
        return self._durable(name, args)

    def _durable(self, name: str, args: dict[str, Any]) -> Any:
        """Pause, resume, seek, re-drive; what a dry run of a pause says is what is there."""
        perform, dry_run = self._node.consumers.perform, bool(args.get("dry_run"))
        kind = args.get("kind")
        if name in ("pause", "resume") and kind in ("topic", "queue"):
            topic = str(args["topic"])
            if dry_run:
                return {"would": name, "topic": topic}
            arguments: dict[str, Any] = {"topic": topic, "paused": name == "pause"}
            if kind == "queue":
                arguments["queue"] = int(args["queue"])
            perform(f"{name.replace('resume', 'pause')}_{kind}", arguments)
            return {"paused": name == "pause"}
        if name == "purge" and kind in ("topic", "queue"):
            return self._purge(str(args["topic"]), args.get("queue"), dry_run)
        if kind != "subscription" or name not in ("pause", "resume", "seek", "redrive"):
            raise Unsupported(f"{name} of a {kind}: this engine cannot do that yet")
        which = {"pattern": str(args["pattern"]), "name": str(args["name"])}
        if name == "seek":
            return {"lanes": perform("seek", which | _seek_arguments(args) | {"dry_run": dry_run})}
        if name == "redrive":
            given = ("key", "reason", "where", "to")
            chosen = {k: str(args[k]) for k in given if args.get(k)} | {"dry_run": dry_run}
            return redrive_pages(self._node.consumers, which | chosen, args.get("count_max", 1000))
        if not dry_run:
            perform(name, which)
        return dict(perform("show", which | {"cursors": False}))

    def _purge(self, topic: str, queue: int | None, dry_run: bool) -> Any:
        kept = browse.topic_of(self._node, topic)
        if kept is None:
            raise NotFound(f"no durable topic {topic} here")
        number = None if queue is None else int(queue)
        return browse.purge(self._node, kept, number, dry_run=dry_run)

    def cancel(self, command_id: str) -> None:
        """End a stream."""
        with self._lock:
            stopping = self._streams.pop(command_id, None)
        if stopping is not None:
            stopping.set()

    def forget_streams(self) -> None:
        """End all streams: nobody listens any more."""
        with self._lock:
            ended = list(self._streams.values())
            self._streams.clear()
        for stopping in ended:
            stopping.set()

    def stop(self) -> None:
        """End all streams, for good."""
        self._stopped = True
        self.forget_streams()

    # --- recorder ---------------------------------------------------------------------------------

    def _recorder(self, limit: int, section: str) -> dict[str, Any]:
        mapped = MappedFile.open(self._node.recorder_path)
        try:
            records = read_records(mapped.array)
        finally:
            mapped.close()
        wanted = [r for r in records if section in ("all", r.section)]
        shown = [_record(r) for r in wanted[-min(limit, RECORDS_MAX) :]]
        return {"node": self._node.name, "records": shown}

    # --- messages ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reading(self, topic: str, *, earliest: bool) -> Any:
        if topic not in {t.name for t in self._node.topics()}:
            raise NotFound(f"no topic {topic}")
        connection = connect_inside(self._node, "control browse")
        try:
            start = Earliest() if earliest else Latest()
            yield connection.subscribe(topic, start=start, tethered=False, on_gap="skip")
        finally:
            connection.close()

    def _browse(self, args: dict[str, Any]) -> dict[str, Any]:
        kept = browse.topic_of(self._node, str(args["topic"]))
        if kept is not None:
            limit = min(int(args["limit"]), BROWSE_MESSAGES_MAX)
            return browse.browse(self._node, kept, args | {"limit": limit})
        if args.get("durable"):  # its queues are elsewhere
            return {"messages": [], "scanned": 0, "complete": True, "places": {}, "began": {},
                    "earliest": {}}  # fmt: skip
        if args.get("start") in ("token", "time"):
            raise ConfigError(
                f"start: {args['start']}: topic {args['topic']} is live, it keeps no tokens: "
                "allowed earliest, latest"
            )
        limit = min(int(args["limit"]), BROWSE_MESSAGES_MAX)
        needle = str(args.get("q", "")).encode()
        wait_s = min(int(args["wait_ms"]) / 1000, BROWSE_S_MAX)
        found: list[dict[str, Any]] = []
        scanned = 0
        with self._reading(str(args["topic"]), earliest=args.get("start") == "earliest") as reader:
            deadline_s = time.monotonic() + wait_s
            while len(found) < limit and scanned < BROWSE_SCANNED_MAX:
                try:
                    message = reader.next(timeout=max(0.0, deadline_s - time.monotonic()))
                except Timeout:
                    break
                scanned += 1
                if not needle or needle in bytes(message.data) or needle in (message.key or b""):
                    found.append(_message(message))
        return {"messages": found, "scanned": scanned, "complete": len(found) < limit}

    def _shown(self, args: dict[str, Any]) -> Shown:
        """Whose messages a tail shows: each engine its own, the first one those of strangers."""
        others, mine = frozenset(args.get("except", ())), self._node.name
        if args.get("first", True):
            return lambda node: node not in others
        return lambda node: node == mine

    def _tail(self, command_id: str, topic: str, shown: Shown) -> dict[str, Any]:
        """Begin a live tail on a thread of its own: it lasts until it is cancelled."""
        stopping = threading.Event()
        with self._lock:
            if self._stopped or len(self._streams) >= STREAMS_MAX:
                raise Unsupported(f"at most {STREAMS_MAX} live tails at once")
            self._streams[command_id] = stopping
        stack = contextlib.ExitStack()
        try:
            reader = stack.enter_context(self._reading(topic, earliest=False))
        except TidecastError:
            self.cancel(command_id)
            raise

        def run() -> None:
            with stack, contextlib.suppress(TidecastError):
                while not stopping.is_set():
                    self._tail_once(command_id, reader, stopping, shown)

        threading.Thread(target=run, name="control-tail", daemon=True).start()
        return {}

    def _tail_once(
        self, command_id: str, reader: Subscription, stopping: threading.Event, shown: Shown
    ) -> None:
        """What comes in one interval: the first few messages, and how many more there were."""
        began_s = time.monotonic()
        kept: list[dict[str, Any]] = []
        skipped = 0
        while time.monotonic() - began_s < TAIL_INTERVAL_S and not stopping.is_set():
            batch = reader.poll(1024)
            if not batch:
                stopping.wait(0.02)
                continue
            room = TAIL_MESSAGES_MAX - len(kept)
            mine = [m for m in batch.messages if shown(m.node)]
            kept += [_message(m) for m in mine[:room]]
            skipped += max(0, len(mine) - room)
        if kept:
            self._send({"type": "stream", "id": command_id, "messages": kept, "skipped": skipped})

    def _publish(self, args: dict[str, Any]) -> dict[str, Any]:
        connection = connect_inside(self._node, "control publish")
        try:
            publisher = connection.publisher(str(args["topic"]), on_full="error")
            publisher.publish(
                base64.b64decode(args["payload"]), key=args.get("key"),
                headers=args.get("headers") or None, timestamp=True, flush=True, timeout=2.0,
            )  # fmt: skip
            publisher.flush(timeout=2.0)
        finally:
            connection.close()
        return {"topic": args["topic"], "node": self._node.name, "ack": "engine"}


def _seek_arguments(args: dict[str, Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    queue = args.get("queue")
    if args.get("shift") is not None:
        arguments["shift"] = int(args["shift"])
    elif args["at"] == "token":
        arguments |= {"start": "tokens", "start_tokens": {int(queue or 0): int(args["token"])}}
        queue = int(queue or 0)
    else:
        arguments["start"] = args["at"]
        arguments["start_time_ns"] = int(args.get("time_ns") or 0)
    return arguments if queue is None else arguments | {"queue": int(queue)}


def _message(message: Message) -> dict[str, Any]:
    raw = bytes(message.data)
    return {
        "topic": message.topic,
        "node": message.node,
        "session": message.session,
        "at_ns": message.timestamp,
        "key": (message.key or b"").decode("utf-8", "backslashreplace") if message.key else None,
        "headers": {str(k): _plain(v) for k, v in message.headers.items()},
        "size": len(raw),
        "payload": base64.b64encode(raw[:PAYLOAD_BYTES_MAX]).decode(),
    }


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def _record(record: Record) -> dict[str, Any]:
    try:
        code = Code(record.code)
        name, names = code.name, MEANING[code][2]
    except ValueError:
        name, names = str(record.code), ("a", "b", "c", "d")
    values = dict(zip(names, map(str, record.arguments), strict=False))
    return {
        "at_ns": record.at_ns,
        "section": record.section,
        "writer": record.writer,
        "code": name,
        "entity": record.entity,
        "values": values,
        "text": record.text,
    }
