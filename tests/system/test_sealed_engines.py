"""Sealed transports of real engines: what is on the wire, who gets in, keys that rotate."""

from __future__ import annotations

import shutil
import socket
import struct
import threading
from typing import Any

import pytest
from tests.conftest import Eventually
from tests.support import packets
from tests.support.lab import Lab, Platform, multicast, topology
from tests.support.ports import free_port

from tidecast.layout import packet as wire
from tidecast.layout import sealed as lay
from tidecast.node.sealing.wire_keys import FILE_NAME

MESSAGES = [b"%d" % n + b"secret" * (n % 9) for n in range(5_000)]


def sealed_pair(lab: Lab, transports: list[dict[str, Any]]) -> list[Platform]:
    """Two engines that require seals, with one key file."""
    made = [
        lab.platform(topology(transport, name=name, topics=[{"name": "t"}]), start=False)
        for name, transport in zip(("left", "right"), transports, strict=True)
    ]
    made[0].run("wire", "keys", "new", transports[0]["name"])
    share_keys(made)
    for each in made:
        each.start()
    return made


def share_keys(platforms: list[Platform]) -> None:
    """As an operator copies the file."""
    for other in platforms[1:]:
        shutil.copy(platforms[0].directory / FILE_NAME, other.directory / "copy")
        (other.directory / "copy").replace(other.directory / FILE_NAME)


def listener(transport: dict[str, Any]) -> socket.socket:
    """A host that joined the group, as everybody on the network can."""
    heard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    heard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    heard.bind((transport["group"], transport["port"] + wire.CHANNEL_PORT_OFFSET[1]))
    group = socket.inet_aton(transport["group"]) + socket.inet_aton("127.0.0.1")
    heard.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
    heard.settimeout(10.0)
    return heard


def transfer(source: Platform, target: Platform) -> None:
    """All messages from one engine to the other, in order."""
    with source.connect() as there, target.connect() as here, here.subscribe("t") as reader:
        got: list[bytes] = []

        def collect() -> None:
            got.extend(bytes(reader.next(timeout=30.0).data) for _ in MESSAGES)

        thread = threading.Thread(target=collect)
        thread.start()
        with there.publisher("t") as publisher:
            for at in range(0, len(MESSAGES), 100):
                publisher.publish_batch(MESSAGES[at : at + 100]).check()
            publisher.flush(timeout=30.0)
            thread.join(60.0)
        assert got == MESSAGES


def test_all_on_the_wire_is_sealed_and_an_outsider_gets_nowhere(
    lab: Lab, eventually: Eventually
) -> None:
    transport = multicast(secure="required")
    left, right = sealed_pair(lab, [transport, transport])
    stranger = lab.platform(topology({**transport, "secure": "off"}, name="stranger"))
    with listener(transport) as heard, stranger.connect() as outside:
        outside.subscribe("t")
        with outside.publisher("t") as loud:
            loud.publish(b"forged")
            for source, target in ((left, right), (right, left)):
                transfer(source, target)
        seen = [heard.recv(65_536) for _ in range(50)]
        genuine = [raw for raw in seen if raw[0] == lay.SEALED_VERSION]
        assert genuine
        assert not any(b"secret" in raw for raw in genuine)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forger:
            forger.setsockopt(
                socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1")
            )
            to = (transport["group"], transport["port"] + wire.CHANNEL_PORT_OFFSET[1])
            for raw in genuine:
                forger.sendto(raw, to)  # recorded
                forger.sendto(raw[:-1] + bytes([raw[-1] ^ 1]), to)  # changed
                number = struct.pack("<q", 1 << 40)
                forger.sendto(raw[: lay.NUMBER_AT] + number + raw[lay.NUMBER_AT + 8 :], to)
            forger.sendto(packets.setup("left", "t", incarnation=1 << 62), to)
    for each in (left, right):
        eventually(lambda each=each: each.counters("receiver").get("plain_refused", 0) > 0, "plain")

    def counted(*names: str) -> int:
        return sum(p.counters("receiver").get(n, 0) for p in (left, right) for n in names)

    eventually(lambda: counted("replayed") > 0, "replays")
    eventually(lambda: counted("tag_failed", "unknown_key") > 0, "forgeries")
    transfer(left, right)


@pytest.mark.parametrize("kind", ["multicast", "unicast"])
def test_keys_rotate_under_loss_while_messages_flow(
    lab: Lab, eventually: Eventually, kind: str
) -> None:
    transports = [multicast(secure="required", cipher="aes-256-gcm")] * 2
    if kind == "unicast":
        ports = [free_port(), free_port()]
        assert abs(ports[0] - ports[1]) > 2
        transports = [
            {
                "name": "multicast",
                "kind": "udp-unicast",
                "port": mine,
                "secure": "required",
                "peers": [f"127.0.0.1:{other}"],
                "allow_faults": True,
            }
            for mine, other in (ports, ports[::-1])
        ]
    platforms = sealed_pair(lab, transports)
    for each in platforms:
        each.run("faults", "set", "--drop", "0.1")
    transfer(*platforms)
    platforms[0].run(
        "wire", "keys", "rotate", "multicast", "--activate-after", "3s", "--retire-after", "3s"
    )
    share_keys(platforms)
    for _ in range(3):
        transfer(*platforms)
    rows = platforms[0].json("wire", "keys", "show", "--json")
    assert [row["epoch"] for row in rows] == [1, 2]
    eventually(
        lambda: platforms[0].json("wire", "keys", "show", "--json")[0]["state"] == "retired",
        "the end of epoch 1",
        timeout_s=30.0,
    )
    transfer(*platforms)
    for each in platforms:
        assert each.counters("sender").get("keyless", 0) == 0
        assert each.counters("receiver").get("tag_failed", 0) == 0
