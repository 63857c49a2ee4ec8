"""A channel of the live feed: what it keeps, and what who comes later begins with."""

from __future__ import annotations

import json
from typing import Any

from tidecast_control.kit.resources import merged
from tidecast_control.live.feed import (
    FRAMES_KEPT_BYTES_MAX,
    FRAMES_KEPT_MAX,
    Channel,
    Frame,
)
from tidecast_control.live.patch import difference


def _filled(moments: int, width: int = 1) -> tuple[Channel, dict[str, Any]]:
    """A channel after so many changes, and its data."""
    channel = Channel("overview", 0, None)
    data: dict[str, Any] = {}
    for n in range(moments):
        after = {"n": n, "pad": {str(w): n * w for w in range(width)}, f"only{n % 3}": n}
        patch = difference(data, after)
        data = channel.data = after
        channel.push(Frame(n + 1, "delta", "overview", patch))
    return channel, data


def _played(texts: list[str]) -> dict[str, Any]:
    frames = [json.loads(text) for text in texts]
    assert [f["kind"] for f in frames] == ["snapshot", *["delta"] * (len(frames) - 1)]
    assert [f["at"] for f in frames] == sorted(f["at"] for f in frames)
    data: Any = {}
    for frame in frames:
        data = merged(data, frame["data"])
    return data


def test_who_comes_later_begins_with_the_last_minute() -> None:
    """Charts are full at once, and the data is what the others see."""
    for moments in (1, 5, FRAMES_KEPT_MAX, FRAMES_KEPT_MAX + 30):
        channel, data = _filled(moments)
        texts = channel.replay()
        assert _played(texts) == data
        assert len(texts) in (moments, FRAMES_KEPT_MAX + 1)
        assert json.loads(texts[-1])["seq"] == str(channel.seq)


def test_a_huge_channel_keeps_less() -> None:
    channel, data = _filled(60, width=5_000)
    assert 1 <= len(channel.frames) < 60
    assert sum(len(frame.text) for frame in channel.frames) <= FRAMES_KEPT_BYTES_MAX
    assert _played(channel.replay()) == data


def test_a_channel_without_data_begins_empty() -> None:
    assert _played(Channel("overview", 7, None).replay()) == {}
