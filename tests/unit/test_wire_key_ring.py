"""Sealed transports at their start: what is refused, and the remedy that the error names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.sealed_network import FIRST, sealed_node

from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.errors import ConfigError, NotFound
from tidecast.node.sealing import key_ring
from tidecast.node.sealing.wire_keys import FILE_NAME, WireKeys, load_wire_keys, save_wire_keys
from tidecast.testing import Network
from tidecast.transport import sockets


def run(*arguments: str, data_dir: Path) -> Any:
    from tidecast.cli.sealing.wire import wire

    return CliRunner().invoke(wire, ["keys", *arguments, "--data-dir", str(data_dir)])


@pytest.mark.parametrize("secure", ["optional", "required"])
def test_without_libcrypto_a_sealed_transport_refuses_to_start(
    monkeypatch: pytest.MonkeyPatch, secure: str
) -> None:
    def missing() -> None:
        raise NotFound("no usable libcrypto: the system: gone")

    monkeypatch.setattr(key_ring, "find_libcrypto", missing)
    with Network(seed=1) as net:
        with pytest.raises(ConfigError, match=r"secure: \w+: no usable .* apt install libssl3"):
            sealed_node(net, "a", secure=secure)
        assert net.node("b", topics=["t"]).alive, "others do not need it"


def test_a_packet_that_does_not_pass_in_one_piece_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = {
        "name": "lan",
        "kind": "udp-multicast",
        "port": 23_940,
        "group": "239.77.9.9",
        "secure": "required",
        "packet_bytes": 65_000,
    }
    save_wire_keys(WireKeys().with_new("lan", 1), tmp_path / FILE_NAME)
    topology = topology_from({"transports": [wire]})
    monkeypatch.setattr(sockets, "path_mtu", lambda *_: 1500)
    with pytest.raises(ConfigError) as raised:
        EmbeddedLink.open(topology=topology, mode="inline", data_dir=tmp_path)
    assert str(raised.value) == (
        "transport lan: packet_bytes: 65000: allowed at most 1432: a sealed packet is 40 bytes "
        "longer, its IP and UDP headers have 28, and the MTU of the path to 239.77.9.9:23940 is "
        "1500"
    )


def test_the_mtu_of_loopback_is_found(tmp_path: Path) -> None:
    wire = {
        "name": "lan",
        "kind": "udp-multicast",
        "port": 23_940,
        "group": "239.77.9.9",
        "secure": "required",
    }
    save_wire_keys(WireKeys().with_new("lan", 1), tmp_path / FILE_NAME)
    link = EmbeddedLink.open(
        topology=topology_from({"transports": [wire]}), mode="inline", data_dir=tmp_path
    )
    try:
        [runtime] = link.node.runtimes.values()
        assert runtime.sockets is not None
        assert runtime.path_mtu(runtime.target_addresses()[0]) >= 16_384
    finally:
        link.close()


@pytest.mark.parametrize(
    ("wire", "problem"),
    [
        ({"kind": "ipc", "secure": "required"}, "an ipc transport has no packets to seal"),
        ({"secure": "yes"}, "transports[0].secure: yes: allowed"),
        ({"cipher": "des"}, "transports[0].cipher: des: allowed"),
    ],
)
def test_settings_are_checked(wire: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        topology_from({"transports": [{"name": "lan", **wire}]})
    assert problem in str(raised.value)


def test_commands_make_rotate_and_show_keys_and_print_no_secret(tmp_path: Path) -> None:
    assert "no transport has keys" in run("show", data_dir=tmp_path).output
    outputs = [run("new", "lan", data_dir=tmp_path).output]
    assert "epoch 1 is used now" in outputs[0]
    outputs.append(run("rotate", "lan", "--activate-after", "1h", data_dir=tmp_path).output)
    outputs.append(run("show", data_dir=tmp_path).output)
    outputs.append(run("show", "--json", data_dir=tmp_path).output)
    rows = json.loads(outputs[-1])
    assert [(row["epoch"], row["state"]) for row in rows] == [(1, "active"), (2, "waiting")]
    path = tmp_path / FILE_NAME
    assert path.stat().st_mode & 0o777 == 0o600
    for each in load_wire_keys(path).transports["lan"]:
        assert not any(each.secret_hex[:16] in text for text in outputs)
    again = run("rotate", "lan", data_dir=tmp_path)
    assert again.exit_code != 0
    assert "a rotation is under way" in str(again.exception)


def test_a_first_epoch_may_begin_later(tmp_path: Path) -> None:
    assert (
        "is used from 20" in run("new", "lan", "--activate-after", "30m", data_dir=tmp_path).output
    )
    [row] = json.loads(run("show", "--json", data_dir=tmp_path).output)
    assert row["state"] == "waiting"


def test_the_state_of_a_node_names_no_secret() -> None:
    with Network(seed=1) as net:
        [state] = sealed_node(net, "a").engine.wire_keys.state()
        assert state == {"transport": "memory", "secure": "required", "epoch": 1, "accepted": [1]}
        assert FIRST.transports["memory"][0].secret_hex not in repr(net.nodes[0].engine.wire_keys)
