"""The link to the control service: one websocket that the engine opens and keeps open.

The engine registers, applies the topology that the service sends, reports the applied state,
answers commands, and sends telemetry while a page watches. A thread of its own applies topologies
and begins commands, in the order of their messages; everything else continues meanwhile. Without
the service it continues: the topology file is the last good topology, and `control.json` has its
version.

Messages are JSON objects with a ``type``; docs/CONTROL.md lists them.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from tidecast.access import is_loopback
from tidecast.api import levels
from tidecast.api.connecting import UNLOGGED, Backoff
from tidecast.config.store import TopologyStore
from tidecast.control_link.apply import Applier
from tidecast.control_link.commands import Commands
from tidecast.control_link.leases import LinkLeases
from tidecast.control_link.peers import announced
from tidecast.control_link.work_queue import WorkQueue
from tidecast.disk import write_atomically
from tidecast.errors import AuthError, ConfigError, TidecastError
from tidecast.telemetry.queues import Times
from tidecast.telemetry.views import sample
from tidecast.version import VERSION

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from tidecast.node.node import Node

STATE_NAME = "control.json"
PATH = "/api/v1/engine"
MESSAGE_BYTES_MAX = 256 << 20
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.1, 5.0
REFUSED_S = 30.0
INTERVAL_MS_MIN = 50
COMMANDS_AT_ONCE_MAX = 8
LOOKS = frozenset({"counters", "credential", "peers", "recorder", "sample"})
"""Commands that need not wait for topologies that came before them."""
PING_S = 10.0
CLOCK_S = 5.0
"""How often an engine asks for the service's time: more often than an epoch ends."""
TIME_NS_MAX = 1 << 62
HAND_OVER_S = 5.0
"""Longest time that an engine takes to release its leases when it stops."""
SOUND_S = 10.0
"""After a connection that lasted this long, the next attempt begins with a short pause."""


def reason_of(body: bytes | bytearray | None) -> str:
    """Why a service refused a handshake, from the problem in its answer."""
    try:
        return f": {msgspec.json.decode(body or b'')['detail']}"
    except (msgspec.MsgspecError, KeyError, TypeError):
        return ""


def hello_levels() -> dict[str, Any]:
    """The levels of a hello, which this engine reads."""
    return {
        "protocol": levels.protocol_of("control"),
        "levels": [levels.OURS.low, levels.OURS.high],
    }


class ControlState(msgspec.Struct, kw_only=True):
    """The state that an engine keeps about its control service, in ``control.json``, mode 0600."""

    url: str = ""
    credential: str = ""
    version: int = 0
    managed: list[str] = []
    """Topics that the service created: the engine deletes only these when the service has no such
    topic."""


def load_state(data_dir: Path) -> ControlState:
    """The state of a data directory; empty when there is none, or it cannot be read."""
    try:
        return msgspec.json.decode((data_dir / STATE_NAME).read_bytes(), type=ControlState)
    except (OSError, msgspec.MsgspecError):
        return ControlState()


def websocket_url(url: str, *, insecure: bool = False) -> str:
    """``https://host:7480`` -> ``wss://host:7480/api/v1/engine``.

    ``insecure``: clear text is meant, also to another host. Raises ConfigError.
    """
    parts = urlsplit(url)
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    if parts.scheme not in schemes or not parts.hostname:
        raise ConfigError(f"--control: {url!r}: allowed is http://HOST:PORT or https://HOST:PORT")
    if schemes[parts.scheme] == "ws" and not (insecure or is_loopback(parts.hostname)):
        raise ConfigError(
            f"--control: {url!r}: token, credential and hashes of keys would cross the network in "
            "clear text: give the service a certificate and use https://, or say that the network "
            "is trusted with --insecure-control"
        )
    return f"{schemes[parts.scheme]}://{parts.netloc}{parts.path.rstrip('/')}{PATH}"


class ControlLink:
    """See module. `start` and `stop`; between them its threads do everything."""

    def __init__(
        self,
        node: Node,
        store: TopologyStore,
        url: str,
        *,
        token: str | None = None,
        ca_file: Path | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
        seed: int | None = None,
        leases: LinkLeases | None = None,
        insecure: bool = False,
    ) -> None:
        """``token``: an enrolment token, used until the service has issued a credential.

        ``leases``: the node's store of leases, to be answered by the service.

        Raises ConfigError: the URL is wrong, or there is neither token nor credential.
        """
        try:
            import websockets.sync.client  # noqa: F401
        except ImportError:
            raise ConfigError(
                "--control needs websockets: pip install 'tidecast[control]'"
            ) from None
        self.node, self.url = node, websocket_url(url, insecure=insecure)
        self._token, self._clock_ns = token, clock_ns
        self._random = random.Random(seed)
        self._ssl = ssl.create_default_context(cafile=ca_file) if self.url[:3] == "wss" else None
        self._path = node.data_dir / STATE_NAME
        self.state = load_state(node.data_dir)
        if self.state.url != self.url:
            self.state = ControlState(url=self.url)
        if not self.state.credential and not token:
            raise ConfigError(
                "this engine is not known to the control service yet: make an enrolment token "
                "there and give it with --enrol TOKEN"
            )
        self._applier = Applier(
            node, store, self.state.managed, self.state.version, on_saved=self._save
        )
        self._commands = Commands(node, self._send, self._applier.traffic)
        self.leases = LinkLeases() if leases is None else leases
        self.leases.bind(self._send_now)
        """The queues' lease store, in the service's Postgres."""
        self._pool = ThreadPoolExecutor(COMMANDS_AT_ONCE_MAX, thread_name_prefix="control-command")
        self._work_queue = WorkQueue("control-apply", self._job_failed)
        self._stopping = threading.Event()
        self._lock, self._saving = threading.Lock(), threading.Lock()
        self._socket: ClientConnection | None = None
        self._known = False
        """This connection's service was sent every generation."""
        self._failed: ClientConnection | None = None
        """A topology of this connection failed: those behind it lack its changes."""
        self._interval_ms = 0
        self._enrolling = False
        self._due_s, self._clock_due_s = 0.0, 0.0
        self._asked_ns = 0
        """When this engine asked for the service's time, by its monotonic clock; 0: it did not."""
        self._times = Times()
        self.connected = threading.Event()
        self.problem = ""
        self._thread = threading.Thread(target=self._run, name="control-link", daemon=True)

    def start(self) -> None:
        """Begin to connect; returns at once."""
        if self.state.credential:
            self._applier.restore_peers()
        self._thread.start()

    def stop(self) -> None:
        """Close the link and wait for its thread. Idempotent."""
        if self.node.lease_store is self.leases and self.connected.is_set():
            self.node.durable.leases.hand_over(HAND_OVER_S)
        self._stopping.set()
        connection = self._socket
        if connection is not None:
            connection.close_socket()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._work_queue.stop(5.0)
        self._commands.stop()
        self._applier.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- connection -------------------------------------------------------------------------------

    def _run(self) -> None:
        from websockets.exceptions import InvalidStatus, WebSocketException

        backoff = Backoff(BACKOFF_S_MIN, BACKOFF_S_MAX, self._random)
        while not self._stopping.is_set():
            began_s, enrolling, refused = time.monotonic(), self._enrolling, False
            self._enrolling = False
            try:
                self._session(enrolling=enrolling)
                self.problem = ""
            except InvalidStatus as refusal:
                status = refusal.response.status_code
                self.problem = (
                    f"the service refused: HTTP {status}{reason_of(refusal.response.body)}"
                )
                if status == HTTPStatus.UNAUTHORIZED:
                    refused = self._refused(enrolling=enrolling)
            except AuthError as refusal:
                self.problem = str(refusal)
                refused = self._refused(enrolling=enrolling)
            except (OSError, WebSocketException, TimeoutError, msgspec.MsgspecError) as problem:
                self.problem = f"{type(problem).__name__}: {problem}"
            except Exception as problem:  # noqa: BLE001  (reported; and connected again)
                self.problem = f"{type(problem).__name__}: {problem}"
                self.node.conductor.agent_failed("control link", problem, 1)
            finally:
                self.connected.clear()
                self._interval_ms = 0
                self._commands.forget_streams()
            if time.monotonic() - began_s > SOUND_S:
                backoff.clear()
            long_s = REFUSED_S * self._random.uniform(0.5, 1.0)
            self._stopping.wait(long_s if refused else backoff.next_s())

    def _refused(self, *, enrolling: bool) -> bool:
        """The credential is not known: enrol again with the token, else (True) wait for long.

        The credential is kept until there is another: the service may take it again.
        """
        self._enrolling = bool(self._token and self.state.credential and not enrolling)
        return not self._enrolling

    def _session(self, *, enrolling: bool) -> None:
        """One connection. ``enrolling``: with the token, though there is a credential."""
        from websockets.sync.client import connect

        credential = "" if enrolling else self.state.credential
        secret = credential or self._token or ""
        with connect(
            self.url,
            additional_headers={"Authorization": f"Bearer {secret}"},
            ssl=self._ssl,
            open_timeout=5.0,
            close_timeout=1.0,
            ping_interval=PING_S,
            ping_timeout=PING_S,
            max_size=MESSAGE_BYTES_MAX,
            user_agent_header=f"tidecast/{VERSION}",
            logger=UNLOGGED,
        ) as connection:
            with self._lock:
                self._socket = connection
            try:
                self._known = False
                self._send(self._hello(connection, self.state.version if credential else 0))
                while not self._stopping.is_set():
                    self._step(connection)
            finally:
                with self._lock:
                    self._socket = None

    def _hello(self, connection: ClientConnection, applied_version: int) -> dict[str, Any]:
        addresses, problems = announced(self.node, str(connection.socket.getsockname()[0]))
        self._applier.announced(problems)
        return {
            "type": "hello",
            **hello_levels(),
            "node": self.node.name,
            "node_id": self.node.id,
            "incarnation": self.node.incarnation,
            "version": VERSION,
            "host": socket.gethostname(),
            "applied_version": applied_version,
            "addresses": addresses,
        }

    def _step(self, connection: ClientConnection) -> None:
        now_s = time.monotonic()
        wait_s = self._ask_time(now_s)
        if self._interval_ms:
            wait_s = min(wait_s, self._due_s - now_s)
            if now_s >= self._due_s:
                traffic = self._applier.traffic()
                seen = sample(self.node, self._clock_ns(), self._times)
                self._send({"type": "telemetry", "traffic": traffic, **seen})
                self._due_s = max(self._due_s + self._interval_ms / 1000, now_s)
                return
        try:
            message = msgspec.json.decode(connection.recv(timeout=wait_s))
        except TimeoutError:
            return
        self._handle(message)

    def _ask_time(self, now_s: float) -> float:
        """Ask for the service's time when it is due. Returns seconds until it is due again."""
        if self.connected.is_set() and now_s >= self._clock_due_s:
            self._clock_due_s = now_s + CLOCK_S
            self._asked_ns = self.node.context.clock_ns()
            self._send({"type": "clock", "asked_ns": self._asked_ns})
        return max(self._clock_due_s - now_s, 0.0) if self.connected.is_set() else CLOCK_S

    def _send(self, message: dict[str, Any]) -> None:
        """Send from any thread; messages while the link is down are dropped."""
        with self._lock:
            if self._socket is not None:
                self._socket.send(msgspec.json.encode(message).decode())

    def _send_now(self, message: dict[str, Any]) -> bool:
        """Send from any thread; False when the link is down."""
        from websockets.exceptions import WebSocketException

        with self._lock:
            if self._socket is None:
                return False
            try:
                self._socket.send(msgspec.json.encode(message).decode())
            except (OSError, WebSocketException):
                return False
        return True

    # --- messages ---------------------------------------------------------------------------------

    def _handle(self, message: dict[str, Any]) -> None:
        handler = MESSAGES.get(str(message.get("type")))
        if handler is not None:  # a newer service sends more types
            handler(self, message)

    def welcomed(self, message: dict[str, Any]) -> None:
        """The service knows this engine."""
        if message.get("credential"):
            # perhaps of another service: earlier state is not this service's
            self.state = ControlState(url=self.url, credential=str(message["credential"]))
            self._save()
        batch_max = int(message.get("lease_batch_max", 1))
        self.leases.allow(batch_max, reasons=bool(message.get("lease_reasons")))
        self._clock_due_s = 0.0
        self.connected.set()

    def take_time(self, message: dict[str, Any]) -> None:
        """The service's time, as an answer to the newest question."""
        time_ns, asked_ns = message.get("time_ns"), message.get("asked_ns")
        if not isinstance(time_ns, int) or not 0 < time_ns < TIME_NS_MAX:
            return
        if self._asked_ns and asked_ns == self._asked_ns:
            answered_ns = self.node.context.clock_ns()
            self.node.wire_keys.service_clock.learn(self._asked_ns, answered_ns, time_ns)
            self._asked_ns = 0

    def refused(self, message: dict[str, Any]) -> None:
        """The service refuses this engine. Raises AuthError."""
        raise AuthError(str(message.get("detail", "the service refused this engine")))

    def watch(self, message: dict[str, Any]) -> None:
        """Set the interval of telemetry; 0: none."""
        interval_ms = int(message.get("interval_ms", 0))
        self._interval_ms = max(interval_ms, INTERVAL_MS_MIN) if interval_ms else 0
        self._due_s = time.monotonic()

    def begin_command(self, message: dict[str, Any]) -> None:
        """Run a command on a thread of the pool, behind the topologies that came before it.

        A command whose connection has ended does not begin: the service has reported its failure,
        and its caller may have repeated it.
        """
        connection = self._socket

        def run() -> None:
            if self._socket is connection:
                self._command(message)
            if self._socket is not connection:  # a stream began after `forget_streams`
                self._commands.cancel(str(message.get("id")))

        def begin() -> None:
            with contextlib.suppress(RuntimeError):  # the pool is shut down
                self._pool.submit(run)

        if message.get("name") in LOOKS:
            begin()
        else:
            self._work_queue.submit(begin)

    def leased(self, message: dict[str, Any]) -> None:
        """A reply of the lease store."""
        self.leases.take(message)

    def cancel(self, message: dict[str, Any]) -> None:
        """End a stream, also when it is about to begin."""

        def cancel() -> None:
            self._commands.cancel(str(message.get("id")))

        cancel()
        self._work_queue.submit(cancel)

    def dismissed(self, message: dict[str, Any]) -> None:
        """The service ended this engine's identity: clients are let in by declared keys alone."""
        self._work_queue.forget()
        self._work_queue.submit(self._forget_keys)  # a topology may set some now
        # keys and topology come again, all of them, if it is let in again
        self.state = msgspec.structs.replace(self.state, version=0)
        self._forget_keys()
        self._save()
        raise AuthError(f"the service dismissed this engine: {message.get('detail', '')}")

    def apply(self, message: dict[str, Any]) -> None:
        """Apply the topology, and report the outcome to the service that sent it.

        A topology has the changes since the one before it. When one fails, those behind it are
        dropped: applied, they would stand for its changes too. The next connection brings all.
        """
        connection, state = self._socket, self.state

        def apply() -> None:
            if connection is not None and connection is self._failed:
                return
            try:
                self._apply(message, connection, state)
            except Exception as problem:  # noqa: BLE001  (reported; and connected again)
                self._failed = connection
                self.node.conductor.agent_failed("control link", problem, 1)
                if connection is not None:
                    connection.close_socket()

        self._work_queue.submit(apply)

    def _apply(
        self, message: dict[str, Any], connection: ClientConnection | None, state: ControlState
    ) -> None:
        """``state``: as it was when the message came; of another service it knows no version."""
        from websockets.exceptions import WebSocketException

        outcome = self._applier.apply(message)
        version = int(message["version"])
        if self.state is state:
            state.version, state.managed = version, outcome.managed
            self._save()
        applied = {
            "type": "applied",
            "version": version,
            "errors": outcome.errors,
            "level": self.node.topology.level,
            "restart_needed": outcome.restart_needed,
            "differs": outcome.differs,
        }
        with self._lock:
            if connection is None or self._socket is not connection:
                return  # the next connection reports the applied state
            applied["observed"] = outcome.observed if self._known else self._applier.observed
            self._known = True
            with contextlib.suppress(OSError, WebSocketException):
                connection.send(msgspec.json.encode(applied).decode())

    def _forget_keys(self) -> None:
        """Let clients in by declared keys alone; also if the file of the keys cannot be written."""
        try:
            self.node.keys.learn([])
        except OSError as problem:
            self._job_failed(problem)

    def _job_failed(self, problem: Exception) -> None:
        self.node.conductor.agent_failed("control link", problem, 1)

    def _save(self) -> None:
        with self._saving:
            self._write(self.state)

    def _write(self, state: ControlState) -> None:
        """Keep the state, with a version of which all topics are in the topology file."""
        version = min(state.version, self._applier.saved_version)
        kept = msgspec.structs.replace(state, version=version)
        write_atomically(self._path, msgspec.json.encode(kept))

    def _take_credential(self, credential: str) -> None:
        """Use a new credential once it is stored: the service keeps the present one until then."""
        with self._saving:
            self._write(msgspec.structs.replace(self.state, credential=credential))
            self.state.credential = credential

    def _command(self, message: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"type": "result", "id": message.get("id")}
        try:
            if message.get("name") == "credential":
                self._take_credential(str(message["args"]["credential"]))
                self._send(answer | {"ok": True, "value": {}})
                return
            value = self._commands.run(
                str(message.get("id")), str(message.get("name")), message.get("args") or {}
            )
            answer |= {"ok": True, "value": value}
        except TidecastError as problem:
            answer |= {"ok": False, "code": problem.code, "detail": str(problem)}
        except (KeyError, TypeError, ValueError, OSError) as problem:
            answer |= {"ok": False, "code": "bad_command", "detail": f"{problem!r}"}
        except Exception as problem:  # noqa: BLE001 - the service waits for an answer
            answer |= {"ok": False, "code": "internal", "detail": f"internal error: {problem!r}"}
            self.node.conductor.agent_failed("control command", problem, 1)
        self._send(answer)


MESSAGES: dict[str, Callable[[ControlLink, dict[str, Any]], None]] = {
    "welcome": ControlLink.welcomed,
    "dismissed": ControlLink.dismissed,
    "refused": ControlLink.refused,
    "topology": ControlLink.apply,
    "clock": ControlLink.take_time,
    "watch": ControlLink.watch,
    "command": ControlLink.begin_command,
    "leased": ControlLink.leased,
    "cancel": ControlLink.cancel,
}
