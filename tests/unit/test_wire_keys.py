"""`wire-keys.json`: epochs and rotation, and a file that is checked before it is believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidecast.errors import ConfigError, Conflict, NotFound
from tidecast.node.sealing.wire_keys import (
    FILE_BYTES_MAX,
    WireKeys,
    load_wire_keys,
    save_wire_keys,
)

S = 10**9
NOW = 1_000_000 * S
FIRST, SECOND = "11" * 32, "22" * 32


@pytest.fixture
def keys() -> WireKeys:
    return WireKeys().with_new("lan", NOW, lambda n: b"\x11" * n)


def epochs_of(keys: WireKeys, now_ns: int) -> list[int]:
    return [each.epoch for each in keys.accepted("lan", now_ns)]


def test_a_first_epoch_is_active_at_once(keys: WireKeys) -> None:
    assert keys.active("lan", NOW).secret == b"\x11" * 32
    assert epochs_of(keys, NOW) == [1]
    with pytest.raises(Conflict, match=r"^transport lan has keys: rotate them$"):
        keys.with_new("lan", NOW)
    for name, now in (("wan", NOW), ("lan", NOW - 1)):
        with pytest.raises(NotFound, match=rf"^transport {name}: .* no epoch that is active$"):
            keys.active(name, now)


def test_secrets_are_random() -> None:
    made = [WireKeys().with_new("lan", NOW).active("lan", NOW).secret for _ in range(3)]
    assert len(set(made)) == 3
    assert {len(each) for each in made} == {32}


def test_a_rotation_is_known_before_it_is_active_and_ends_after(keys: WireKeys) -> None:
    keys = keys.rotated("lan", NOW, activate_after_s=60, retire_after_s=30)
    at = {
        t: (keys.active("lan", NOW + t * S).epoch, epochs_of(keys, NOW + t * S))
        for t in (0, 59, 60, 89, 90, 1000)
    }
    assert at == {
        0: (1, [1, 2]),
        59: (1, [1, 2]),
        60: (2, [1, 2]),
        89: (2, [1, 2]),
        90: (2, [2]),
        1000: (2, [2]),
    }


def test_a_third_epoch_waits_until_the_first_one_is_over(keys: WireKeys) -> None:
    keys = keys.rotated("lan", NOW, activate_after_s=60, retire_after_s=30)
    with pytest.raises(Conflict, match="a rotation is under way"):
        keys.rotated("lan", NOW + 89 * S)
    later = keys.rotated("lan", NOW + 90 * S, activate_after_s=0, retire_after_s=0)
    assert epochs_of(later, NOW + 90 * S) == [3]
    assert later.active("lan", NOW + 90 * S).epoch == 3


def test_retired_secrets_are_removed_and_numbers_are_not_used_again(keys: WireKeys) -> None:
    keys = keys.rotated("lan", NOW, activate_after_s=0, retire_after_s=30)
    assert len(keys.without_retired(NOW).transports["lan"]) == 2
    after = keys.without_retired(NOW + 30 * S)
    assert [each.epoch for each in after.transports["lan"]] == [2]
    assert FIRST.encode() not in msgspec.json.encode(after)


@pytest.mark.parametrize("setting", ["activate_after_s", "retire_after_s"])
@pytest.mark.parametrize("value", [-1, 31 * 86400])
def test_delays_out_of_range_are_refused(keys: WireKeys, setting: str, value: int) -> None:
    delay: dict[str, Any] = {setting: value}
    with pytest.raises(ConfigError, match=rf"^{setting}: {value}: allowed are 0 to 2592000$"):
        keys.rotated("lan", NOW, **delay)


def test_no_secret_is_printed(keys: WireKeys) -> None:
    assert FIRST not in repr(keys)
    assert FIRST not in repr(keys.active("lan", NOW))


# --- the file ------------------------------------------------------------------------------------


def test_what_was_saved_is_loaded(keys: WireKeys, tmp_path: Path) -> None:
    path = tmp_path / "wire-keys.json"
    with pytest.raises(NotFound):
        load_wire_keys(path)
    keys = keys.rotated("lan", NOW)
    save_wire_keys(keys, path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_wire_keys(path) == keys
    assert FIRST in path.read_text()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_file_that_others_can_read_is_refused(keys: WireKeys, tmp_path: Path, mode: int) -> None:
    path = tmp_path / "wire-keys.json"
    save_wire_keys(keys, path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=r"others may read it: chmod 600"):
        load_wire_keys(path)


def epoch(number: Any = 1, secret: Any = FIRST, at: Any = 5, **more: Any) -> dict[str, Any]:
    return {"epoch": number, "secret_hex": secret, "activate_at_ns": at, **more}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "Expected `object`, got `array`"),
        ({"transport": {}}, "Object contains unknown field `transport`"),
        ({"transports": {"lan": [epoch(0)]}}, "Expected `int` >= 1 - at `$.transports[...][0]"),
        ({"transports": {"lan": [epoch(1 << 32)]}}, "Expected `int` <= 4294967295"),
        ({"transports": {"lan": [epoch(at=-1)]}}, "Expected `int` >= 0"),
        ({"transports": {"lan": [epoch(colour=1)]}}, "unknown field `colour`"),
        ({"transports": {"lan": []}}, "transports.lan: 0 epochs: allowed are 1 to 2"),
        (
            {"transports": {"lan": [epoch(k, f"{k:064x}") for k in (1, 2, 3)]}},
            "transports.lan: 3 epochs: allowed are 1 to 2",
        ),
        (
            {"transports": {"lan": [epoch(secret="1" * 63)]}},
            "transports.lan: epoch 1: secret_hex: allowed are exactly 64 hex digits, lower case",
        ),
        (
            {"transports": {"lan": [epoch(2), epoch(1, SECOND)]}},
            "transports.lan: epoch 1 does not follow epoch 2",
        ),
        (
            {"transports": {"lan": [epoch(1), epoch(2, SECOND, 4)]}},
            "transports.lan: epoch 2 does not follow epoch 1",
        ),
        (
            {"transports": {"lan": [epoch(1), epoch(2)]}},
            "transports.lan: epochs 1 and 2 have one secret: make a new one",
        ),
        (
            {"transports": {"lan": [epoch(1, retire_at_ns=8), epoch(2, SECOND, 9)]}},
            "transports.lan: epoch 1: retire_at_ns: 8: allowed are 0, and 9 (epoch 2 is active)",
        ),
        ({"transports": {str(k): [epoch()] for k in range(65)}}, "transports: 65: allowed are 64"),
    ],
)
def test_a_wrong_file_is_refused_by_field(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "wire-keys.json"
    path.touch(0o600)
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError) as raised:
        load_wire_keys(path)
    assert message in str(raised.value)
    assert str(path) in str(raised.value)
    assert FIRST not in str(raised.value)


def test_what_is_no_file_of_keys_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wire-keys.json"
    path.touch(0o600)
    for content, message in (
        (b"{", "this is no JSON"),
        (b"\xff", "this is no JSON"),
        (b" " * (FILE_BYTES_MAX + 1), "larger than 1048576 bytes"),
    ):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=message):
            load_wire_keys(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_wire_keys(tmp_path)
    with pytest.raises(ConfigError, match="cannot be written"):
        save_wire_keys(WireKeys(), tmp_path)
