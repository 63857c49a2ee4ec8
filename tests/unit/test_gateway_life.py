"""The life of a session at the gateway: each transition of its table, over raw connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.conftest import Eventually
from tests.support.gateways import TIMEOUT_S, TOKEN, make_gateway, remote
from tests.support.state_tables import names_of, transitions_of
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as connect_websocket

from tidecast.api.frames.common import Goodbye
from tidecast.client.remote import frames
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.errors import Closed
from tidecast.gateway.life import Event, State
from tidecast.gateway.server import TRANSITIONS, Gateway
from tidecast.gateway.session import RemoteSession


@pytest.fixture
def node(tmp_path: Any) -> Iterator[EmbeddedLink]:
    settings = {"transports": [{"name": "ipc", "kind": "ipc"}]}
    link = EmbeddedLink.open(topology_from(settings), data_dir=tmp_path, name="host")
    yield link
    link.close()


class Client:
    """One connection; ``session``: the client that shows it again."""

    def __init__(self, gateway: Gateway, session: frames.Welcome | None = None) -> None:
        url = f"ws://{gateway.host}:{gateway.port}{frames.PATH}"
        token = {"Authorization": f"Bearer {TOKEN}"}
        self.socket = connect_websocket(
            url, proxy=None, compression=None, additional_headers=token
        ).__enter__()
        hello = frames.Hello(name="raw")
        if session is not None:
            hello = frames.Hello(name="raw", session=session.session, key=session.key)
        self.send(hello)
        welcome, _ = frames.from_gateway(self.socket.recv(TIMEOUT_S))
        assert isinstance(welcome, frames.Welcome)
        self.welcome = welcome

    def send(self, frame: Any) -> None:
        self.socket.send(frames.encode(frame))

    def cut(self) -> None:
        """The network takes the connection, without a word."""
        self.socket.socket.close()

    def reason(self) -> str:
        """The gateway's last word."""
        try:
            while True:
                frame, _ = frames.from_gateway(self.socket.recv(TIMEOUT_S))
                if isinstance(frame, Goodbye):
                    return frame.reason
        except ConnectionClosed:
            return ""


def test_every_transition_is_made(node: EmbeddedLink, eventually: Eventually) -> None:
    def away(n: int) -> bool:
        return [each["connected"] for each in gateway.stats()["sessions"]].count(False) == n

    with transitions_of(TRANSITIONS) as reached:
        gateway = make_gateway(node, resume_s=TIMEOUT_S)
        first = Client(gateway)
        second = Client(gateway, first.welcome)  # while the first is there
        assert second.welcome.resumed
        assert first.reason() == ""
        assert ("SERVED", "LOST") not in reached  # of a connection that was taken over
        second.cut()
        eventually(lambda: away(1), "the session to be away")
        third = Client(gateway, first.welcome)
        assert third.welcome.resumed
        third.send(frames.Bye())
        eventually(lambda: not gateway.stats()["sessions"], "the session to end")
        served, gone = Client(gateway), Client(gateway)
        gone.cut()
        eventually(lambda: away(1), "the session to be away")
        gateway.stop()
        assert served.reason() == "the engine stops"
        assert gateway.stats()["sessions"] == []
        short = make_gateway(node, resume_s=0.05)
        Client(short).cut()
        eventually(lambda: short.counts["expired"] == 1, "the session to expire")
        assert not Client(short, third.welcome).welcome.resumed
        short.stop()
    assert reached == names_of(TRANSITIONS)


def test_an_event_that_a_state_does_not_list_is_counted_and_changes_nothing() -> None:
    for event in Event:
        before = TRANSITIONS.refused[State.ENDED, event]
        assert TRANSITIONS.after(State.ENDED, event) is None
        assert TRANSITIONS.refused[State.ENDED, event] == before + 1


def test_an_ended_session_is_not_resumed(node: EmbeddedLink, eventually: Eventually) -> None:
    gateway = make_gateway(node)
    client = Client(gateway)
    client.send(frames.Bye())
    eventually(lambda: not gateway.stats()["sessions"], "the session to end")
    again = Client(gateway, client.welcome)
    assert not again.welcome.resumed
    assert again.welcome.session != client.welcome.session
    gateway.stop()


def test_a_connection_that_waits_for_an_ended_session_is_refused() -> None:
    """It was served for good, also where the session had ended because its key was revoked."""

    async def main() -> None:
        session: Any = RemoteSession.__new__(RemoteSession)
        session._socket, session._free, session.state = None, asyncio.Lock(), State.SERVED
        await session._free.acquire()  # the connection before is still ending
        serving = asyncio.create_task(session.serve(None, resumed=True, level=1))
        await asyncio.sleep(0)
        session.enter(State.ENDED)
        session._free.release()
        with pytest.raises(Closed, match="the session has ended"):
            await serving

    asyncio.run(main())


def test_a_client_that_is_closed_while_it_connects_again_leaves_no_session(
    node: EmbeddedLink, eventually: Eventually
) -> None:
    gateway = make_gateway(node, resume_s=0.05)
    client = remote(gateway.url)
    link: Any = client.link
    dial, closing = link._dial, threading.Thread(target=client.close)

    def dialled(*given: str) -> Any:
        answer = dial(*given)
        closing.start()
        assert link._closing.wait(TIMEOUT_S)
        return answer

    link._dial = dialled
    link._hang_up()
    eventually(lambda: closing.ident is not None, "it connects again")
    closing.join()
    eventually(lambda: not gateway.stats()["sessions"], "the session to end")
    gateway.stop()
