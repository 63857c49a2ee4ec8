"""Commands of the control service: counters, recorder, browse, tail, publish, subscriptions.

Every command has bounds of its own: messages, bytes, seconds.
"""

from __future__ import annotations

import base64
import contextlib
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from tidecast.api.operations import Operation, Operations
from tidecast.api.renamed import both_names
from tidecast.api.start import Earliest, Latest
from tidecast.buffers.recorder import Record, read_records
from tidecast.client.blocking import Subscription
from tidecast.client.core.message import Message
from tidecast.control_link import browse
from tidecast.control_link.browse import scheduled_message
from tidecast.control_link.drain import drain_state
from tidecast.errors import ConfigError, NotFound, TidecastError, Timeout
from tidecast.layout.recorder import MEANING, Code
from tidecast.native.mapped import MappedFile
from tidecast.node.consumers.letters import remote_redrive
from tidecast.node.consumers.redrive import redrive_pages
from tidecast.node.kafka_endpoint import KAFKA_ACTIONS
from tidecast.node.scheduling.scheduled import cancel_pages
from tidecast.telemetry.views import connect_inside, sample

if TYPE_CHECKING:
    from tidecast.node.node import Node

BROWSE_MESSAGES_MAX, BROWSE_SCANNED_MAX = 200, 100_000
BROWSE_S_MAX, TAIL_INTERVAL_S = 5.0, 0.25
TAIL_MESSAGES_MAX = 50
PAYLOAD_BYTES_MAX = 64 * 1024
RECORDS_MAX = 1000
STREAMS_MAX = 32
PUBLISH_S = 2.0
"""Seconds that a command waits for room in the ring, and again for the disk."""

Shown = Callable[[str], bool]
"""Whether messages published on a node are shown."""
Send = Callable[[dict[str, Any]], None]


class Unsupported(TidecastError):
    """The engine of this version cannot do that."""

    code = "not_implemented"


class Command(NamedTuple):
    """A request of the control service, on a resource of ``args["kind"]`` if it is of one."""

    id: str
    name: str
    args: dict[str, Any]

    @property
    def kind(self) -> str | tuple[str, Any]:
        """Its place in `COMMANDS`."""
        return self.name if self.name in OF_NODE else (self.name, self.args.get("kind"))

    @property
    def dry_run(self) -> bool:
        """Only report the changes."""
        return bool(self.args.get("dry_run"))

    @property
    def which(self) -> dict[str, str]:
        """The subscription."""
        return {"pattern": str(self.args["pattern"]), "name": str(self.args["name"])}


class Commands:
    """Runs commands on threads of the link's pool; ``send`` carries the frames of streams."""

    def __init__(self, node: Node, send: Send, traffic: Callable[[], dict[str, Any]]) -> None:
        self._node, self._send, self._traffic = node, send, traffic
        self._streams: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, command_id: str, name: str, args: dict[str, Any]) -> Any:
        """Run one command; its value. The service has checked rights. Raises TidecastError."""
        command = Command(command_id, name, args)
        return COMMANDS.named(command.kind).handler(self, command)

    # --- node and durable topics ------------------------------------------------------------------

    def sample(self, _: Command) -> Any:
        """A sample of telemetry."""
        return sample(self._node, time.time_ns()) | {"traffic": self._traffic()}

    def counters(self, _: Command) -> Any:
        """Counters of the node."""
        node = self._node
        return {"node": node.name, "at_ns": time.time_ns(), "counters": node.stats()}

    def drain(self, _: Command) -> Any:
        """The resources that a drain moves, and the resources that stay."""
        return drain_state(self._node)

    def peers(self, _: Command) -> Any:
        """The peers of unicast transports that the service named, and when each was heard."""
        return {"peers": self._node.discovered()}

    def pause(self, command: Command) -> Any:
        """Pause or resume a topic or a queue."""
        topic, paused = str(command.args["topic"]), command.name == "pause"
        if command.dry_run:
            return {"would": command.name, "topic": topic}
        arguments: dict[str, Any] = {"topic": topic, "paused": paused}
        kind = command.args["kind"]
        if kind == "queue":
            arguments["queue"] = int(command.args["queue"])
        self._node.consumers.perform(f"pause_{kind}", arguments)
        return {"paused": paused}

    def pause_subscription(self, command: Command) -> Any:
        """Pause or resume a subscription; a dry run shows it as it is."""
        perform, which = self._node.consumers.perform, command.which
        if not command.dry_run:
            perform(command.name, which)
        return dict(perform("show", which | {"cursors": False}))

    def seek(self, command: Command) -> Any:
        """Move a subscription."""
        arguments = command.which | _seek_arguments(command.args) | {"dry_run": command.dry_run}
        return both_names(self._node.consumers.perform("seek", arguments))

    def redrive(self, command: Command) -> Any:
        """Deliver dead letters again."""
        args, given = command.args, ("key", "reason", "where", "to")
        chosen = {k: str(args[k]) for k in given if args.get(k)} | {"dry_run": command.dry_run}
        limit = args.get("count_max", 1000)
        return redrive_pages(self._node.consumers, command.which | chosen, limit)

    def redrive_marks(self, command: Command) -> Any:
        """The letters of a subscription that were sent again."""
        return remote_redrive.marks_of(self._node.consumers, **command.which)

    def redrive_page(self, command: Command) -> Any:
        """Deliver dead letters again whose subscription has its queues at another engine."""
        args, given = command.args, ("key", "reason", "where", "to")
        chosen: dict[str, Any] = {k: str(args[k]) for k in given if args.get(k)}
        page: dict[str, Any] = {
            "marks": args["marks"],
            "limit": int(args["limit"]),
            "after": args.get("after"),
            "dry_run": command.dry_run,
        }
        named: dict[str, Any] = dict(command.which)
        return remote_redrive.send_page(self._node.consumers, **named, **chosen, **page)

    def redrive_note(self, command: Command) -> Any:
        """Another engine delivered dead letters again."""
        return remote_redrive.note_page(
            self._node.consumers, **command.which, sent=command.args["sent"]
        )

    def scheduled(self, command: Command) -> dict[str, Any]:
        """Records of a topic that wait for their delivery time."""
        args = command.args
        chosen = _chosen(args) | {"limit": int(args["limit"]), "after": args.get("after")}
        found = self._node.consumers.perform("scheduled", chosen)
        return found | {"records": [scheduled_message(self._node, r) for r in found["records"]]}

    def cancel_scheduled(self, command: Command) -> dict[str, Any]:
        """Cancel records of a topic before their delivery time, page by page."""
        args = command.args
        chosen = _chosen(args) | {
            "records": args.get("records"),
            "everything": bool(args.get("everything")),
            "dry_run": command.dry_run,
        }
        return cancel_pages(self._node.consumers, chosen)

    def purge(self, command: Command) -> Any:
        """Delete the records of a topic or a queue."""
        topic, queue = str(command.args["topic"]), command.args.get("queue")
        kept = browse.topic_of(self._node, topic)
        if kept is None:
            raise NotFound(f"no durable topic {topic} here")
        number = None if queue is None else int(queue)
        return browse.purge(self._node, kept, number, dry_run=command.dry_run)

    def kafka(self, command: Command) -> Any:
        """Clients and groups of the Kafka endpoint."""
        return self._node.kafka.perform(command.name, command.args)

    def unknown(self, command: Command) -> Any:
        """A command that no operation serves. Raises Unsupported."""
        kind = command.args.get("kind")
        raise Unsupported(f"{command.name} of a {kind}: this engine cannot do that yet")

    def cancel(self, command_id: str) -> None:
        """End a stream."""
        with self._lock:
            stopping = self._streams.pop(command_id, None)
        if stopping is not None:
            stopping.set()

    def forget_streams(self) -> None:
        """End all streams: the link is down."""
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

    def recorder(self, command: Command) -> dict[str, Any]:
        """Records of the flight recorder."""
        limit, section = int(command.args["limit"]), str(command.args["section"])
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

    def browse(self, command: Command) -> dict[str, Any]:
        """Messages of a topic."""
        args = command.args
        kept = browse.topic_of(self._node, str(args["topic"]))
        if kept is not None:
            limit = min(int(args["limit"]), BROWSE_MESSAGES_MAX)
            return browse.browse(self._node, kept, args | {"limit": limit})
        if args.get("durable"):  # its queues are elsewhere
            return {
                "messages": [],
                "scanned": 0,
                "complete": True,
                "places": {},
                "began": {},
                "earliest": {},
            }
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
        """Publishers whose messages a tail shows: each engine its own, the first one others too."""
        others, mine = frozenset(args.get("except", ())), self._node.name
        if args.get("first", True):
            return lambda node: node not in others
        return lambda node: node == mine

    def tail(self, command: Command) -> dict[str, Any]:
        """Begin a live tail on a thread of its own: it lasts until it is cancelled."""
        command_id, topic, shown = command.id, str(command.args["topic"]), self._shown(command.args)
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
        """The messages of one interval: the first few, and how many more there were."""
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

    def publish(self, command: Command) -> dict[str, Any]:
        """Publish one message. A command `schedule` is the same with a delivery time.

        With ``ack`` "durable" it waits until the message is on disk.
        """
        args = command.args
        due, ack = args.get("deliver_at"), "durable" if args.get("ack") == "durable" else "engine"
        connection = connect_inside(self._node, "control publish")
        try:
            publisher = connection.publisher(str(args["topic"]), on_full="error")
            publisher.publish(
                base64.b64decode(args["payload"]),
                key=args.get("key"),
                headers=args.get("headers") or None,
                timestamp=True,
                flush=True,
                timeout=PUBLISH_S,
                ack=ack,  # type: ignore[arg-type]
                deliver_at=None if due is None else datetime.fromisoformat(str(due)),
                deliver_in=args.get("deliver_in_s"),
            )
            publisher.flush(timeout=PUBLISH_S)
        finally:
            connection.close()
        return {"topic": args["topic"], "node": self._node.name, "ack": ack}


OF_NODE = {
    "sample": Operation(Commands.sample),
    "counters": Operation(Commands.counters),
    "drain": Operation(Commands.drain),
    "peers": Operation(Commands.peers),
    "recorder": Operation(Commands.recorder),
    "browse": Operation(Commands.browse),
    "tail": Operation(Commands.tail),
    "publish": Operation(Commands.publish),
    "schedule": Operation(Commands.publish),
    "scheduled": Operation(Commands.scheduled),
    **{action: Operation(Commands.kafka) for action in KAFKA_ACTIONS},
}
_PAUSE, _PURGE = Operation(Commands.pause), Operation(Commands.purge)
_PAUSE_SUBSCRIPTION = Operation(Commands.pause_subscription)
COMMANDS = Operations(
    {
        **OF_NODE,
        ("pause", "topic"): _PAUSE,
        ("pause", "queue"): _PAUSE,
        ("resume", "topic"): _PAUSE,
        ("resume", "queue"): _PAUSE,
        ("cancel_scheduled", "topic"): Operation(Commands.cancel_scheduled),
        ("purge", "topic"): _PURGE,
        ("purge", "queue"): _PURGE,
        ("pause", "subscription"): _PAUSE_SUBSCRIPTION,
        ("resume", "subscription"): _PAUSE_SUBSCRIPTION,
        ("seek", "subscription"): Operation(Commands.seek),
        ("redrive", "subscription"): Operation(Commands.redrive),
        ("redrive_marks", "subscription"): Operation(Commands.redrive_marks),
        ("redrive_page", "subscription"): Operation(Commands.redrive_page),
        ("redrive_note", "subscription"): Operation(Commands.redrive_note),
    },
    Commands.unknown,
)


def _chosen(args: dict[str, Any]) -> dict[str, Any]:
    """Which records of a topic are meant."""
    given = ("subscription", "key", "where")
    return {"topic": str(args["topic"])} | {k: str(args[k]) for k in given if args.get(k)}


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
