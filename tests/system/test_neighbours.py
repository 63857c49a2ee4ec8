"""Two platforms of two people on one host, as they are without a topology file of their own."""

from __future__ import annotations

import json

from tests.conftest import Eventually
from tests.support.lab import Lab

from tidecast.config.topology import load_topology, topology_path
from tidecast.events import ForeignPlatform, PeerJoined


def test_two_platforms_do_not_hear_each_other(lab: Lab) -> None:
    mine, theirs = lab.platform(None), lab.platform(None)
    places = [load_topology(topology_path(each.directory)).transports[0] for each in (mine, theirs)]
    assert places[0].where != places[1].where
    assert places[0].platform != places[1].platform
    speaker, listener = mine.connect(), theirs.connect()
    with listener.subscribe(">", start="earliest") as messages, mine.connect() as friend:
        with friend.subscribe("news", start="earliest") as known:
            speaker.publish("news", b"for my own", flush=True)
            assert known.next(timeout=30).data == b"for my own"
        listener.publish("other", b"a fence", flush=True)
        assert messages.next(timeout=30).topic == "other"
        assert not list(messages.poll())
    assert not [each for each in listener.events() if isinstance(each, PeerJoined)]


def test_strangers_that_share_a_group_are_refused_and_named(
    lab: Lab, eventually: Eventually
) -> None:
    """Someone copied group and port, but not the platform."""
    mine = lab.platform(None)
    transport = load_topology(topology_path(mine.directory)).transports[0]
    copied = {
        "name": "multicast",
        "group": transport.group,
        "port": transport.port,
        "platform": "fedcba9876543210",
    }
    theirs = lab.platform({"transports": [copied]})
    listener = theirs.connect()
    with listener.subscribe("news", start="earliest") as messages:
        mine.connect().publish("news", b"not for them", flush=True)
        seen: list[ForeignPlatform] = []

        def reported() -> bool:
            seen.extend(each for each in listener.events() if isinstance(each, ForeignPlatform))
            return bool(seen)

        eventually(reported, "the stranger's event")
        assert seen[0].platform == transport.platform
        assert not list(messages.poll())
        findings = json.loads(theirs.run("doctor", "--json", check=False).stdout)["findings"]
        [strangers] = [each for each in findings if each["check"] == "strangers on multicast"]
        assert strangers["status"] == "warn"
        assert transport.platform in strangers["detail"]
