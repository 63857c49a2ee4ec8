"""docs/PROTOCOL.md and the code say the same: layouts, flags, states, timers, counters, codes."""

from __future__ import annotations

import re

import pytest

from tests.project import ROOT
from tidecast import protocol_document as document
from tidecast.layout import counters, packet, recorder, ring, segment
from tidecast.layout.fields import Field, Layout
from tidecast.queues.leases import keeper

PAGE = ROOT / "docs/PROTOCOL.md"
PAGES = (PAGE, ROOT / "docs/DURABLE.md", ROOT / "docs/GATEWAY.md")
MEND = "run: python -m tidecast.protocol_document docs/{PROTOCOL,DURABLE,GATEWAY}.md"


def stale_parts(text: str) -> list[str]:
    fresh = document.generated(text)
    pairs = zip(document.MARKED.finditer(text), document.MARKED.finditer(fresh), strict=True)
    return [old[2] for old, new in pairs if old[0] != new[0]]


def test_the_pages_are_what_the_code_says() -> None:
    for page in PAGES:
        assert not stale_parts(page.read_text("utf-8")), MEND


def test_every_part_is_shown_once() -> None:
    text = "".join(page.read_text("utf-8") for page in PAGES)
    shown = [found[2] for found in document.MARKED.finditer(text)]
    assert sorted(shown) == sorted(document.PARTS)


def test_every_layout_is_shown() -> None:
    text = PAGE.read_text("utf-8")
    for layout in document.layouts(packet, ring, counters, recorder, segment):
        assert layout.diagram() in text, layout.name


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("| 10 | 2 | `length` |", "| 12 | 2 | `length` |"),
        ("|      topic      |     length      |", "|     length      |      topic      |"),
        ("| `RETRANSMIT` | DATA |", "| `RETRANSMIT` | NAK |"),
        ("| 100 ms | heartbeat", "| 90 ms | heartbeat"),
        ("    OPEN --> SEALED: sender seals - lingered\n", ""),
        ("| `PACKETS_SENT` |", "| `PACKETS_GONE` |"),
    ],
)
def test_a_difference_is_found(old: str, new: str) -> None:
    text = PAGE.read_text("utf-8")
    assert old in text
    assert len(stale_parts(text.replace(old, new))) == 1


def test_a_moved_field_changes_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = tuple(
        Field("topic_id", f.at, f.width, f.meaning) if f.name == "topic" else f
        for f in packet.PACKET_HEADER.fields
    )
    changed = Layout(packet.PACKET_HEADER.name, packet.PACKET_HEADER.size, fields)
    monkeypatch.setattr(packet, "PACKET_HEADER", changed)
    assert stale_parts(PAGE.read_text("utf-8")) == ["packet-header"]


def test_transitions_are_made_by_code_that_exists() -> None:
    for transitions in document.MACHINES.values():
        for _, _, _, where in transitions:
            assert callable(document.find(where)), where


def test_machines_have_the_states_of_the_code() -> None:
    slots = {"EMPTY", "OPEN", "SEALED", "GONE"}
    drawn = {
        name
        for rows in (document.SLOT_STATES, document.IMAGE_SLOT_STATES)
        for row in rows
        for name in row[:2]
    }
    assert drawn - {"[*]"} == slots == set(document.SLOT_STATE_NAMES)
    assert sorted(getattr(ring, name) for name in slots) == [0, 1, 2, 3]
    assert {n for row in document.LEASE_STATES for n in row[:2]} - {"[*]"} == set(
        keeper.State.__members__
    )
    consumers = {name for row in document.CONSUMER_STATES for name in row[:2]} - {"[*]"}
    assert {f"CONSUMER_{name}" for name in consumers} <= set(vars(ring))


def test_causes_of_refusal_are_counters() -> None:
    section = PAGE.read_text("utf-8").partition("### Checks on arrival")[2].partition("## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert len(named) >= 8
    assert set(named) <= set(counters.Counter.__members__)
    assert {n for n in counters.Counter.__members__ if n.startswith("INVALID_")} <= {
        *named,
        "INVALID_CHECKSUM",
    }


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("BURST_NS", 2_000_000, "2 ms"),
        ("linger_us", 20, "20 us"),
        ("PROBE_NS_MIN", 60_000, "60 us"),
        ("STATUS_INTERVAL_NS_FIRST", 1_500_000_000, "1.5 s"),
        ("heartbeat_ms", 0.5, "500 us"),
        ("WAIT_NS", 12, "12 ns"),
    ],
)
def test_times_are_shown_by_their_unit(name: str, value: float, text: str) -> None:
    assert document.shown_time(name, value) == text
