"""Cursors have two names in frames and answers, and the old one in files (ADR 0042)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tidecast import SubscriptionInfo
from tidecast.api.link import ConsumerGrant
from tidecast.api.renamed import with_new_name
from tidecast.client.remote.frames import ConsumerOpened
from tidecast.queues.subscription_store import SavedCursor, SavedSubscription

ROW = (1 << 32, "t", 0)
GRANTED = {"ack_wait_s": 30.0, "max_deliver": 5, "dead_letter": ""}
GRANT = {
    "consumer_id": 1,
    "member": 2,
    "ring_path": "r",
    "wakes_path": "w",
    "pattern": "t",
    "name": "n",
    **GRANTED,
}
OPENED = {"deliveries_bytes": 1, "acks_bytes": 1, **GRANTED}


@pytest.mark.parametrize(("kind", "fields"), [(ConsumerGrant, GRANT), (ConsumerOpened, OPENED)])
def test_frames_have_both_names_and_either_is_read(kind: Any, fields: dict[str, Any]) -> None:
    made = kind(**fields, cursors=[ROW])
    content = msgspec.msgpack.decode(msgspec.msgpack.encode(made))
    assert content["lanes"] == content["cursors"] == [list(ROW)]
    for name in ("lanes", "cursors"):
        sent = msgspec.msgpack.encode({**fields, name: [ROW]})
        assert msgspec.msgpack.decode(sent, type=kind) == made
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=kind).cursors == []


def test_files_keep_the_old_name_and_either_is_read() -> None:
    cursors = [SavedCursor("t", 0, 7, [(9, 10)], [(8, 2)])]
    saved = SavedSubscription(pattern="t", name="n", created_ns=1, cursors=cursors)
    content = msgspec.msgpack.decode(msgspec.msgpack.encode(saved))
    assert content["lanes"] == [["t", 0, 7, [[9, 10]], [[8, 2]]]]
    assert "cursors" not in content
    newer = content | {"cursors": content["lanes"]}
    del newer["lanes"]
    for each in (content, newer):
        read = msgspec.msgpack.decode(msgspec.msgpack.encode(each), type=SavedSubscription)
        assert read == saved
        assert msgspec.msgpack.encode(read) == msgspec.msgpack.encode(saved)


def test_clients_read_the_answer_of_an_engine_that_knows_the_old_name() -> None:
    rows = [{"queue": 0}]
    assert with_new_name({"lanes": rows})["cursors"] == rows
    assert with_new_name({"lanes": rows, "cursors": rows})["cursors"] == rows
    assert with_new_name({"name": "n"}) == {"name": "n"}, "an answer without cursors"
    assert "cursors" in SubscriptionInfo.__struct_fields__
    assert SubscriptionInfo.__struct_encode_fields__ == SubscriptionInfo.__struct_fields__
