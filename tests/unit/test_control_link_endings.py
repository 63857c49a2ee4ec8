"""The link of an engine when its connection ends, or its disk fails, in the middle of something."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidecast.config.store import TopologyStore
from tidecast.config.topology import default_topology
from tidecast.control_link.link import STATE_NAME, ControlLink, ControlState, load_state
from tidecast.embedded import EmbeddedLink
from tidecast.errors import AuthError
from tidecast.node.access.keys import KEYS_NAME

KEY = {"id": "k", "name": "k", "sha256": "0" * 64, "scopes": []}
TOPOLOGY: dict[str, Any] = {
    "full": True,
    "version": 7,
    "topics": {},
    "faults": {},
    "traffic": {},
    "subscriptions": {},
}


class Socket:
    """A connection that is open."""

    def close_socket(self) -> None:
        """Nothing."""

    def send(self, text: str) -> None:
        """Nothing."""


@pytest.fixture
def link(tmp_path: Path) -> Iterator[ControlLink]:
    """A link that connects nowhere: its messages come from the test."""
    embedded = EmbeddedLink.open(default_topology(), mode="inline", data_dir=tmp_path)
    store = TopologyStore(embedded.node.topology, tmp_path / "topology.yaml")
    made = ControlLink(embedded.node, store, "http://127.0.0.1:1", token="t")
    made.state = ControlState(url=made.url, credential="of before")
    made._socket = Socket()  # type: ignore[assignment]
    yield made
    made.stop()
    embedded.close()


def _block(path: Path) -> None:
    """Nothing can be written under this name from now on."""
    path.unlink(missing_ok=True)
    path.mkdir()


def test_a_command_of_a_connection_that_has_ended_does_not_begin(
    link: ControlLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service has reported its failure: a message would be published twice."""
    ran: list[str] = []
    done, go = threading.Event(), threading.Event()

    def run(_id: str, name: str, _args: Any) -> None:
        ran.append(name)
        done.set()

    monkeypatch.setattr(link._commands, "run", run)

    def topology() -> None:
        assert go.wait(20)

    link._work_queue.submit(topology)
    link.begin_command({"id": "1", "name": "publish", "args": {}})
    link._socket = Socket()  # type: ignore[assignment]
    link.begin_command({"id": "2", "name": "purge", "args": {}})
    go.set()
    assert done.wait(20)
    link._pool.shutdown(wait=True)
    assert ran == ["purge"]


def test_a_tail_that_begins_as_its_connection_ends_is_ended(
    link: ControlLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would send to the next connection for ever."""
    ended: list[str] = []
    began, go = threading.Event(), threading.Event()

    def run(_id: str, _name: str, _args: Any) -> None:
        began.set()
        assert go.wait(20)

    monkeypatch.setattr(link._commands, "run", run)
    monkeypatch.setattr(link._commands, "cancel", ended.append)
    link.begin_command({"id": "1", "name": "tail", "args": {}})
    assert began.wait(20)
    link._socket = Socket()  # type: ignore[assignment]
    link._commands.forget_streams()
    go.set()
    link._pool.shutdown(wait=True)
    assert ended == ["1"]


def test_keys_that_are_not_stored_come_again_after_a_restart(
    link: ControlLink, tmp_path: Path
) -> None:
    """Else a key that is revoked since opens the engine again."""
    _block(tmp_path / KEYS_NAME)
    link._apply(TOPOLOGY | {"keys": [KEY]}, None, link.state)
    assert "keys" in link._applier._outcome.errors
    assert load_state(tmp_path).version == 0
    (tmp_path / KEYS_NAME).rmdir()
    link._apply(TOPOLOGY | {"full": False, "version": 8}, None, link.state)
    assert load_state(tmp_path).version == 0, "this topology has no keys"
    link._apply(TOPOLOGY | {"full": False, "version": 9, "keys": [KEY]}, None, link.state)
    assert load_state(tmp_path).version == 9


def test_an_engine_that_is_dismissed_applies_topologies_again_though_its_disk_failed(
    link: ControlLink, tmp_path: Path
) -> None:
    link.node.keys.learn([KEY])
    link.state.version = 7
    _block(tmp_path / KEYS_NAME)
    with pytest.raises(AuthError):
        link.dismissed({"detail": "revoked"})
    assert (link.state.version, load_state(tmp_path).version) == (0, 0)
    assert not link.node.keys
    done = threading.Event()
    link._work_queue.submit(done.set)
    assert done.wait(20), "its thread continues"


def test_a_credential_that_is_not_stored_is_not_used(link: ControlLink, tmp_path: Path) -> None:
    """The service ends the one before as soon as an engine shows the new one."""
    sent: list[Any] = []
    link._send = sent.append  # type: ignore[method-assign, assignment]
    _block(tmp_path / STATE_NAME)
    command = {"id": "1", "name": "credential", "args": {"credential": "fresh"}}
    link._command(command)
    assert (link.state.credential, sent[0]["ok"]) == ("of before", False)
    (tmp_path / STATE_NAME).rmdir()
    link._command(command)
    assert (link.state.credential, sent[1]["ok"]) == ("fresh", True)
    assert load_state(tmp_path).credential == "fresh"
