"""Every frame of clients, local and remote, and the rights it takes. A new frame fails here."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from tidecast.access import Access, Right, Scope
from tidecast.api.frames import socket as frames
from tidecast.api.link import ConsumerOptions, JoinOptions, PublicationOptions, SubscriptionOptions
from tidecast.api.operations import Operations
from tidecast.client.remote import frames as remote_frames
from tidecast.client.remote import log_frames
from tidecast.config.topology import FaultSettings
from tidecast.engine import admission
from tidecast.events import AccessDenied, MessagesDropped, PeerJoined
from tidecast.gateway import log, session
from tidecast.node.access import rights
from tidecast.node.consumers.admin import ACTIONS

OPTIONS = ConsumerOptions(dead_letter="dead")
RANGE = log_frames.Range(topic="t", queue=0, start=0, end=1)
NOTHING: set[tuple[str, str]] = set()
CONSUMES = {("subscribe", "t.*"), ("publish", "dead")}
EVERYTHING = {("manage", ">")}

SOCKET: dict[type, tuple[dict[str, Any], set[tuple[str, str]]]] = {
    frames.Hello: ({"name": "x"}, NOTHING),
    frames.EventsTaken: ({}, NOTHING),
    frames.Sync: ({}, NOTHING),
    frames.NodeIdOf: ({"name": "x"}, NOTHING),
    frames.OpenPublication: ({"topic": "t", "options": PublicationOptions()}, {("publish", "t")}),
    frames.BeginPublication: ({"publication_id": 1}, NOTHING),
    frames.ClosePublication: ({"publication_id": 1}, NOTHING),
    frames.OpenSubscription: (
        {"pattern": "t.*", "options": SubscriptionOptions()},
        {("subscribe", "t.*")},
    ),
    frames.CloseSubscription: ({"subscription_id": 1}, NOTHING),
    frames.ReleaseImage: ({"subscription_id": 1, "image_id": 1}, NOTHING),
    frames.OpenConsumer: ({"pattern": "t.*", "name": "n", "options": OPTIONS}, CONSUMES),
    frames.CloseConsumer: ({"consumer_id": 1}, NOTHING),
    frames.Administer: (
        {"action": "pause", "arguments": {"pattern": "t.*", "name": "n"}},
        {("manage", "t.*")},
    ),
    frames.Stats: ({}, EVERYTHING),
    frames.Overview: ({}, EVERYTHING),
    frames.SetFaults: ({"transport": "x", "faults": FaultSettings()}, EVERYTHING),
    frames.GetFaults: ({}, EVERYTHING),
}
REMOTE: dict[type, tuple[dict[str, Any], set[tuple[str, str]]]] = {
    remote_frames.Hello: ({"name": "x"}, NOTHING),
    remote_frames.Bye: ({}, NOTHING),
    remote_frames.NodeIdOf: ({"id": 1, "node": "x"}, NOTHING),
    remote_frames.Stats: ({"id": 1}, NOTHING),
    remote_frames.OpenPublication: (
        {"id": 1, "number": 1, "topic": "t", "options": PublicationOptions()},
        {("publish", "t")},
    ),
    remote_frames.ClosePublication: ({"id": 1, "number": 1}, NOTHING),
    remote_frames.Publish: ({"number": 1, "batch": 1, "n": 1}, NOTHING),
    remote_frames.OpenSubscription: (
        {"id": 1, "number": 1, "pattern": "t.*", "options": SubscriptionOptions(), "credit": 1},
        {("subscribe", "t.*")},
    ),
    remote_frames.CloseSubscription: ({"id": 1, "number": 1}, NOTHING),
    remote_frames.Credit: ({"number": 1, "n_bytes": 1}, NOTHING),
    remote_frames.OpenConsumer: (
        {"id": 1, "number": 1, "pattern": "t.*", "name": "n", "options": OPTIONS},
        CONSUMES,
    ),
    remote_frames.ResumeConsumer: ({"id": 1, "number": 1, "received": 0}, NOTHING),
    remote_frames.CloseConsumer: ({"id": 1, "number": 1}, NOTHING),
    remote_frames.Acks: ({"number": 1, "position": 0, "released": 0, "taken": 0}, NOTHING),
    remote_frames.Administer: (
        {"id": 1, "action": "show", "arguments": {"pattern": "t.*", "name": "n"}},
        {("subscribe", "t.*")},
    ),
}
READER: dict[type, tuple[dict[str, Any], set[tuple[str, str]]]] = {
    log_frames.Topics: ({"id": 1}, NOTHING),
    log_frames.Bounds: ({"id": 1, "topic": "t"}, {("read_payloads", "t")}),
    log_frames.AtTime: (
        {"id": 1, "topic": "t", "queue": 0, "time_ns": 1},
        {("read_payloads", "t")},
    ),
    log_frames.Cuts: (
        {"id": 1, "topic": "t", "queue": 0, "start": 0, "end": 1, "parts": 1, "part_bytes_min": 1},
        {("read_payloads", "t")},
    ),
    log_frames.Read: ({"id": 1, "range": RANGE, "credit": 1}, {("read_payloads", "t")}),
    log_frames.LogCredit: ({"n_bytes": 1}, NOTHING),
}
WAYS = [
    (SOCKET, get_args(frames.AnyBody), admission.OPERATIONS),
    (REMOTE, get_args(remote_frames.FromClient), session.OPERATIONS),
    (READER, get_args(log_frames.FromReader), log.OPERATIONS),
]


@pytest.mark.parametrize(("table", "known", "operations"), WAYS, ids=["socket", "remote", "reader"])
def test_each_frame_takes_the_rights_of_what_it_does(
    table: Any, known: Any, operations: Operations
) -> None:
    assert set(table) == set(known), "a frame is new: write down what it takes"
    assert operations.kinds() == set(known), "a frame is new: serve it"
    for kind, (fields, expected) in table.items():
        request = kind(**fields)
        assert set(operations.of(request).needs(request)) == expected, kind


class Unknown(msgspec.Struct):
    """A frame that nobody has listed."""


def test_a_frame_that_is_not_listed_takes_everything() -> None:
    for _, _, operations in WAYS:
        assert set(operations.of(Unknown()).needs(Unknown())) == EVERYTHING


ONE = {"pattern": "t", "name": "n"}
ADMINISTERED: dict[str, list[tuple[dict[str, Any], set[tuple[str, str]]]]] = {
    "list": [({}, NOTHING)],
    **{action: [({}, NOTHING)] for action in ("topics", "queues")},
    **{action: [({}, EVERYTHING)] for action in ("counters", "receivers")},
    **{action: [({}, {("subscribe", ">")})] for action in ("attached", "adapters")},
    **{action: [(ONE, {("subscribe", "t")}), ({}, {("subscribe", ">")})]
       for action in ("show", "cursors", "lanes", "peek")},
    **{action: [(ONE, {("manage", "t")}), ({}, EVERYTHING), ({"pattern": ["t"]}, EVERYTHING)]
       for action in ("delete", "pause", "resume", "seek")},
    "create": [
        (ONE, {("manage", "t")}),
        (ONE | {"dead_letter": "dead"}, {("manage", "t"), ("publish", "dead")}),
    ],
    "redrive": [
        (ONE, {("manage", "t")}),
        (ONE | {"to": "elsewhere"}, {("manage", "t"), ("publish", "elsewhere")}),
    ],
    **{action: [({"topic": "t"}, {("read_payloads", "t")}), ({}, {("read_payloads", ">")})]
       for action in ("read_log", "scheduled")},
    "cancel_scheduled": [({"topic": "t"}, {("manage", "t")}), ({}, EVERYTHING)],
    **{action: [({"topic": "t"}, {("manage", "t")}), ({}, EVERYTHING)]
       for action in ("mirror_marks", "append_run")},
    "batches": [({"topic": "t", "queue": 0}, {("subscribe", "t")}), ({}, {("subscribe", ">")})],
    "pause_queue": [({"topic": "t", "queue": 0}, {("manage", "t")}), ({}, EVERYTHING),
                    ({"topic": "t", "pattern": "mine"}, {("manage", "t")})],
    **{action: [({"topic": "t"}, {("manage", "t")}), ({"topic": 1}, EVERYTHING), ({}, EVERYTHING)]
       for action in ("create_topic", "edit_topic", "delete_topic")},
    "pause_topic": [({"topic": "t"}, {("manage", "t")}), ({"topic": 1}, EVERYTHING)],
}  # fmt: skip


def test_each_action_on_subscriptions_takes_the_rights_of_what_it_does() -> None:
    assert set(ADMINISTERED) == set(ACTIONS) | rights.TOPIC_ACTIONS, (
        "an action is new: write down what it takes"
    )
    for action, cases in ADMINISTERED.items():
        for arguments, expected in cases:
            assert set(rights.to_administer(action, arguments)) == expected, (action, arguments)
    assert set(rights.to_administer("new", ONE)) == EVERYTHING


@pytest.mark.parametrize("right", get_args(Right))
def test_a_key_without_manage_joins_what_is_there(right: Right) -> None:
    access = Access("id", "key", (Scope(pattern="t.>", rights=[right]),))
    options = rights.as_allowed(access, "t.*", OPTIONS)
    assert options.may_create == (right == "manage")
    assert isinstance(options, JoinOptions) == (right != "manage")
    for field in OPTIONS.__struct_fields__:
        assert getattr(options, field) == getattr(OPTIONS, field)
    assert not rights.as_allowed(access, "other", OPTIONS).may_create


def test_events_of_other_topics_are_not_heard() -> None:
    access = Access("id", "key", (Scope(pattern="t", rights=["publish"]),))
    every = Access("id", "key", (Scope(pattern=">", rights=["manage"]),))
    denied = AccessDenied(key="other", client="c", right="publish", topic="t")
    assert rights.may_hear(access, MessagesDropped(topic="t", session=1, messages=1))
    assert not rights.may_hear(access, MessagesDropped(topic="other", session=1, messages=1))
    assert rights.may_hear(access, PeerJoined(node="n", node_id=1, incarnation=1))
    assert not rights.may_hear(access, denied)
    assert rights.may_hear(every, denied)
