"""The platform's transports, asked of the control service before an engine opens its own.

Otherwise an engine that joins would speak on the default group, perhaps to another platform, until
it is started a second time.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from tidecast.api.connecting import UNLOGGED
from tidecast.config.topology import (
    Topology,
    TransportConfig,
    save_topology,
    topology_from,
    with_identity,
)
from tidecast.control_link.link import (
    MESSAGE_BYTES_MAX,
    STATE_NAME,
    ControlState,
    hello_levels,
    load_state,
    reason_of,
    websocket_url,
)
from tidecast.control_link.wire_keys import keep_wire_keys
from tidecast.disk import make_directory, write_atomically
from tidecast.errors import AuthError, ConfigError, ConnectionLost, NotFound
from tidecast.node.sealing.wire_keys import FILE_NAME, load_wire_keys
from tidecast.version import VERSION

ANSWER_S = 5.0
FIRST_S, RETRY_S = 60.0, 0.5
"""How long an engine that never had a topology asks for one."""


def fetch_topology(
    topology: Topology,
    data_dir: Path,
    path: Path,
    url: str,
    token: str | None,
    ca_file: Path | None,
    *,
    insecure: bool = False,
) -> Topology:
    """The topology with the service's transports, saved in its file when it differs.

    Without an answer an engine runs the topology of its file. Without a file, or a secret that a
    transport requires, it does not start: it keeps asking for `FIRST_S`. Raises ConfigError,
    ConnectionLost, AuthError.
    """
    link = websocket_url(url, insecure=insecure)
    pause, began_s = threading.Event(), time.monotonic()
    while True:
        try:
            raw = _ask(link, data_dir, topology, token, ca_file)
            break
        except (ConnectionLost, AuthError) as problem:
            missing = _missing(topology, data_dir, path)
            if not missing:
                return topology
            if time.monotonic() - began_s > FIRST_S:
                raise type(problem)(f"{problem}; {missing}") from None
            pause.wait(RETRY_S)
    fetched = _with_transports(topology, raw, load_state(data_dir).managed, path)
    if fetched != topology or not path.exists():
        save_topology(fetched, path)
    return fetched


def _missing(topology: Topology, data_dir: Path, path: Path) -> str:
    """Why an engine does not start without its service; "": it has all that it needs."""
    if not path.exists():
        return (
            "an engine without a topology of its own does not start without the transports of its "
            "control service"
        )
    sealed = [t.name for t in topology.transports if t.secure == "required"]
    if not sealed:
        return ""
    try:
        known = load_wire_keys(data_dir / FILE_NAME).transports
    except NotFound:
        known = {}
    without = [name for name in sealed if not known.get(name)]
    if not without:
        return ""
    return (
        f"transport {', '.join(without)}: secure: required: this engine has no secret of it yet, "
        "and gets the secret from its control service"
    )


def _with_transports(
    topology: Topology, raw: dict[str, Any], managed: list[str], path: Path
) -> Topology:
    try:
        transports = [
            msgspec.convert(each | {"name": name}, TransportConfig) for name, each in raw.items()
        ]
    except msgspec.ValidationError as problem:
        raise ConfigError(f"transports of the control service: {problem}") from None
    if not transports:
        return topology
    names = {each.name for each in transports}
    topics = [t for t in topology.topics if t.transport in names or t.name not in managed]
    changed = msgspec.structs.replace(topology, transports=transports, topics=topics)
    return topology_from(changed, f"{path}, with the transports of the control service")


def _ask(
    link: str, data_dir: Path, topology: Topology, token: str | None, ca_file: Path | None
) -> dict[str, Any]:
    """With the credential; a service that is new does not know it: then with the token."""
    state = load_state(data_dir)
    if state.url != link:
        state = ControlState(url=link)
    if state.credential and token:
        with contextlib.suppress(AuthError):
            return _ask_with(state.credential, link, data_dir, topology, ca_file)
    secret = token or state.credential
    return _ask_with(secret, link, data_dir, topology, ca_file)


def _ask_with(
    secret: str, link: str, data_dir: Path, topology: Topology, ca_file: Path | None
) -> dict[str, Any]:
    from websockets.exceptions import InvalidStatus, WebSocketException
    from websockets.sync.client import connect

    context = ssl.create_default_context(cafile=ca_file) if link.startswith("wss") else None
    try:
        with connect(
            link,
            additional_headers={"Authorization": f"Bearer {secret}"},
            ssl=context,
            open_timeout=ANSWER_S,
            close_timeout=1.0,
            max_size=MESSAGE_BYTES_MAX,
            user_agent_header=f"tidecast/{VERSION}",
            logger=UNLOGGED,
        ) as connection:
            connection.send(msgspec.json.encode(_hello(topology, data_dir)).decode())
            while True:
                message = msgspec.json.decode(connection.recv(timeout=ANSWER_S))
                if message.get("type") in ("refused", "dismissed"):
                    raise AuthError(str(message.get("detail", "the service refused this engine")))
                if message.get("credential"):
                    _keep(data_dir, link, str(message["credential"]))
                if message.get("type") == "transports":
                    make_directory(data_dir)
                    keep_wire_keys(data_dir, dict(message.get("wire_keys", {})))
                    return dict(message["transports"])
    except InvalidStatus as refusal:
        if refusal.response.status_code == HTTPStatus.UNAUTHORIZED:
            raise AuthError(f"refused{reason_of(refusal.response.body)}") from None
        raise ConnectionLost(f"control service {link}: {refusal}") from None
    except (OSError, WebSocketException, TimeoutError, msgspec.MsgspecError) as problem:
        raise ConnectionLost(f"control service {link}: {problem}") from None


def _keep(data_dir: Path, link: str, credential: str) -> None:
    """The engine's link uses it from now on."""
    make_directory(data_dir)
    state = ControlState(url=link, credential=credential)
    write_atomically(data_dir / STATE_NAME, msgspec.json.encode(state))


def _hello(topology: Topology, data_dir: Path) -> dict[str, Any]:
    """The hello of an engine that only asks: it is not connected by it."""
    import socket

    node = with_identity(topology, data_dir).node
    return {
        "type": "hello",
        **hello_levels(),
        "node": node.name,
        "node_id": node.id,
        "incarnation": 0,
        "version": VERSION,
        "host": socket.gethostname(),
        "applied_version": 0,
        "fetch": True,
    }
