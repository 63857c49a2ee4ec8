"""Each check against a machine made of files, and once against this one."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from tests.support import packets
from tests.support.lab import free_group
from tests.support.ports import free_port

from tidecast import doctor
from tidecast.cli import main
from tidecast.config.topology import Topology, TransportConfig, platform_topology, topology_from
from tidecast.doctor import FAIL, IFF_LOOPBACK, IFF_MULTICAST, IFF_UP, OK, WARN, Interface, Place
from tidecast.errors import NotFound
from tidecast.layout import packet as wire

LAN = TransportConfig(name="lan", interface="eth0")
LOOPBACK = TransportConfig(name="here")
ETH0 = Interface(name="eth0", address="10.0.0.5", flags=IFF_UP | IFF_MULTICAST, mtu=1500)
ETH1 = Interface(name="eth1", address="10.0.1.5", flags=IFF_UP | IFF_MULTICAST, mtu=1500)
LO = Interface(name="lo", address="127.0.0.1", flags=IFF_UP | IFF_LOOPBACK, mtu=65536)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> list[Interface]:
    found = [LO, ETH0, ETH1]
    monkeypatch.setattr(doctor, "interfaces", lambda: found)
    return found


def place(tmp_path: Path, *transports: TransportConfig, **files: str) -> Place:
    for name, text in files.items():
        path = tmp_path / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    topology = topology_from(Topology(transports=list(transports)))
    return Place(data_dir=tmp_path / "data", topology=topology, root=tmp_path)


def only(found: Iterable[doctor.Finding]) -> doctor.Finding:
    (one,) = found
    assert one.status == OK or one.mend
    return one


def test_socket_buffers(tmp_path: Path) -> None:
    here = place(
        tmp_path,
        LAN,
        proc__sys__net__core__rmem_max="212992",
        proc__sys__net__core__wmem_max="9" * 9,
    )
    small, enough = doctor.check_socket_buffers(here)
    assert (small.status, small.mend) == (WARN, "sysctl -w net.core.rmem_max=4194304")
    assert enough.status == OK


def test_interfaces(tmp_path: Path, machine: list[Interface]) -> None:
    here = place(tmp_path, LAN)
    assert only(doctor.check_interfaces(here)).status == OK
    machine[1] = Interface(name="eth0", address="10.0.0.5", flags=IFF_MULTICAST, mtu=1500)
    assert only(doctor.check_interfaces(here)).mend == "ip link set eth0 up"
    machine[1] = Interface(name="eth0", address="10.0.0.5", flags=IFF_UP, mtu=1500)
    assert only(doctor.check_interfaces(here)).mend == "ip link set eth0 multicast on"
    machine[1] = Interface(name="eth0", address="10.0.0.5", flags=ETH0.flags, mtu=1400)
    small = only(doctor.check_interfaces(here))
    assert (small.status, small.mend) == (WARN, "set packet_bytes to 1368 or less")
    del machine[1]
    missing = only(doctor.check_interfaces(here))
    assert missing.status == FAIL
    assert "there are lo (127.0.0.1), eth1" in missing.detail


def test_what_an_engine_warns_of_when_it_starts(tmp_path: Path, machine: list[Interface]) -> None:
    machine[1] = Interface(name="eth0", address="10.0.0.5", flags=IFF_MULTICAST, mtu=1500)
    found = doctor.network_findings(place(tmp_path, LAN, LOOPBACK.__class__(name="x", port=7500)))
    assert [each.mend for each in found] == [
        "ip link set eth0 up",
        "ip route add 224.0.0.0/4 dev eth0",
    ]


def test_routes(tmp_path: Path) -> None:
    head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    default = head + "eth1 00000000 0100000A 0003 0 0 0 00000000 0 0 0\n"
    here = place(
        tmp_path, LAN, LOOPBACK.__class__(name="here", port=7500), proc__net__route=default
    )
    other = only(doctor.check_routes(here))
    assert (other.status, other.mend) == (WARN, "ip route add 224.0.0.0/4 dev eth0")
    assert "by eth1" in other.detail
    mine = default + "eth0 000000E0 00000000 0001 0 0 0 000000F0 0 0 0\n"
    assert only(doctor.check_routes(place(tmp_path, LAN, proc__net__route=mine))).status == OK
    none = only(doctor.check_routes(place(tmp_path, LAN, proc__net__route=head)))
    assert none.detail == "no route to 239.255.84.67"


def test_rp_filter(tmp_path: Path, machine: list[Interface]) -> None:
    here = place(tmp_path, LAN, proc__sys__net__ipv4__conf__all__rp_filter="1")
    assert only(doctor.check_rp_filter(here)).status == WARN
    machine.remove(ETH1)
    assert only(doctor.check_rp_filter(here)).status == OK
    assert list(doctor.check_rp_filter(place(tmp_path, LOOPBACK))) == []


def test_firewall(tmp_path: Path) -> None:
    modules = "nf_tables 1 0 - Live 0x0\nudp_diag 1 0 - Live 0x0\n"
    loaded = only(doctor.check_firewall(place(tmp_path, LAN, proc__modules=modules)))
    assert loaded.status == WARN
    assert "--dport 7400:7402" in loaded.mend
    assert (
        only(doctor.check_firewall(place(tmp_path, LOOPBACK, proc__modules=modules))).status == OK
    )
    assert only(doctor.check_firewall(place(tmp_path, LAN, proc__modules=""))).status == OK


def test_clock_and_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = "sys__devices__system__clocksource__clocksource0__"
    slow = place(tmp_path, LAN, **{base + "current_clocksource": "hpet\n"})
    assert only(doctor.check_clock(slow)).status == WARN
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert only(doctor.check_cores(slow)).status == OK
    spinning = place(tmp_path, TransportConfig(name="lan", interface="eth0", idle="busy"))
    assert only(doctor.check_cores(spinning)).mend == "set idle: backoff in the topology"


def test_lanes_that_have_no_cores_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = place(tmp_path, TransportConfig(name="lan", interface="eth0", lanes=4))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)))
    few, cores = doctor.check_cores(wide)
    assert (few.check, few.status) == ("lanes of lan", WARN)
    assert few.mend == "set lanes: 2 in the topology"
    assert cores.status == OK
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(10)))
    assert only(doctor.check_cores(wide)).status == OK


def test_libcrypto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = place(tmp_path, LAN)
    found = only(doctor.check_libcrypto(here))
    assert found.status == OK
    assert re.fullmatch(r"\w+ \d\S* .*, /\S*lib\S+", found.detail)

    def fails() -> None:
        raise NotFound("no usable libcrypto: the system: it does not export EVP_EncryptInit_ex")

    monkeypatch.setattr(doctor, "find_libcrypto", fails)
    missing = only(doctor.check_libcrypto(here))
    assert missing.status == WARN
    assert missing.detail.startswith("no usable libcrypto: the system: it does not export EVP_")
    assert "libssl3" in missing.mend


def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stats:
        f_frsize, f_blocks, f_bavail = 4096, 16384, 16384

    monkeypatch.setattr("os.statvfs", lambda _: Stats)
    here = place(tmp_path, LAN)
    full = only(doctor.check_shared_memory(here))
    assert full.status == WARN
    assert "64 MiB free of 64" in full.detail
    Stats.f_bavail = 100
    assert only(doctor.check_shared_memory(here)).status == FAIL


def test_an_engine_that_died_is_noticed(tmp_path: Path) -> None:
    here = place(tmp_path, LAN)
    assert only(doctor.check_engine(here)).status == OK
    here.data_dir.mkdir()
    (here.data_dir / "engine.json").write_text(
        json.dumps(
            {
                "pid": 1,
                "node_id": 1,
                "node_name": "x",
                "incarnation": 1,
                "version": "0",
                "counters_path": "c",
                "recorder_path": "r",
                "started_ns": 1,
            }
        )
    )
    assert "did not stop cleanly" in only(doctor.check_engine(here)).detail


def test_a_broken_topology_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "topology.yaml").write_text("nonsense: 1")
    finding = doctor.examine(tmp_path)[0]
    assert finding.status == FAIL
    assert "nonsense: unknown setting" in finding.detail


def test_a_check_that_cannot_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_moon(_: Place) -> list[doctor.Finding]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor, "CHECKS", (check_moon,))
    assert doctor.examine(tmp_path)[-1].detail.startswith("cannot look")


def test_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    result = CliRunner().invoke(main, ["doctor", "--json", "--data-dir", str(tmp_path)])
    shown = json.loads(result.output)
    assert result.exit_code == (1 if shown["failed"] else 0)
    by_check = {f["check"]: f for f in shown["findings"]}
    assert by_check["interface of multicast"]["status"] == "ok"
    assert by_check["multicast on multicast"]["detail"].endswith("sent and came")
    text = CliRunner().invoke(main, ["doctor", "--data-dir", str(tmp_path)]).output
    assert f"{len(shown['findings'])} checks" in text


def test_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = TransportConfig(name="lan", kind="udp-unicast", interface="eth0")
    nobody = only(doctor.check_peers(place(tmp_path, alone)))
    assert nobody.status == WARN
    assert nobody.mend == (
        "connect the engines to one control service, or set peers in the topology: "
        "[other-host:7400]"
    )

    def lookup(host: str, *_: object) -> None:
        if host == "nosuch":
            raise OSError("no such host")

    monkeypatch.setattr("socket.getaddrinfo", lookup)
    wire = msgspec.structs.replace(alone, peers=["10.0.0.6:7400", "nosuch:7400"])
    unknown = only(doctor.check_peers(place(tmp_path, wire)))
    assert (unknown.status, unknown.detail) == (FAIL, "nosuch: no such host is known")
    wire = msgspec.structs.replace(alone, peers=["10.0.0.6:7400"])
    assert only(doctor.check_peers(place(tmp_path, wire))).status == OK
    assert list(doctor.check_peers(place(tmp_path, LAN))) == []


def test_discovered_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = TransportConfig(name="lan", kind="udp-unicast", interface="eth0")
    data = tmp_path / "data"
    data.mkdir()
    (data / "control.json").write_text('{"url": "ws://x", "credential": "tcn_x"}')
    none = only(doctor.check_peers(place(tmp_path, alone)))
    assert (none.status, "none yet" in none.detail) == (OK, True)
    peer = {"node": "b", "node_id": 7, "host": "10.0.0.6", "port": 7400}
    (data / "peers.json").write_text(json.dumps({"lan": [peer]}))
    known = only(doctor.check_peers(place(tmp_path, alone)))
    assert (known.status, known.detail) == (OK, "of the control service: b at 10.0.0.6:7400")
    heard = {7: " (silent, heard 31.0 s ago)"}
    monkeypatch.setattr(doctor, "_heard_peers", lambda *_: heard)
    silent = only(doctor.check_peers(place(tmp_path, alone)))
    assert silent.status == WARN
    assert silent.detail.endswith("b at 10.0.0.6:7400 (silent, heard 31.0 s ago)")
    assert "let UDP port to port + 2 pass" in silent.mend
    (data / "peers.json").write_text("{")
    assert only(doctor.check_peers(place(tmp_path, alone))).status == FAIL


def test_the_topology_that_was_told_is_looked_at(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("transports: [{name: far, kind: udp-unicast, port: 7777}]\n")
    told = ["doctor", "--json", "--data-dir", str(tmp_path), "--topology", str(other)]
    found = json.loads(CliRunner().invoke(main, told).output)["findings"]
    assert {"check": "topology", "status": OK, "detail": str(other), "mend": ""} in found
    assert "peers of far" in [each["check"] for each in found]
    other.unlink()
    refused = CliRunner().invoke(main, told)
    assert refused.exit_code != 0


@pytest.fixture
def stranger() -> Iterator[TransportConfig]:
    """A transport on loopback on which a node of another platform introduces itself."""
    transport = platform_topology("0123456789abcdef").transports[0]
    transport = msgspec.structs.replace(transport, group=free_group(), port=free_port())
    raw = bytearray(packets.setup("next-door", "t") + bytes.fromhex("fedcba9876543210"))
    raw[wire.SETUP_PLATFORM_LEN_AT] = wire.PLATFORM_BYTES
    raw[wire.LENGTH_AT : wire.LENGTH_AT + 2] = len(raw).to_bytes(2, "little")
    ended = threading.Event()

    def speak() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            own = socket.inet_aton("127.0.0.1")
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own)
            while not ended.wait(0.02):
                for packet in (b"", b"rubbish" * 20, bytes(raw[:90]), bytes(raw)):
                    sender.sendto(packet, (transport.group, transport.port + 1))

    speaking = threading.Thread(target=speak)
    speaking.start()
    yield transport
    ended.set()
    speaking.join()


def test_strangers_on_the_group_are_named(tmp_path: Path, stranger: TransportConfig) -> None:
    found = only(doctor.check_strangers(place(tmp_path, stranger)))
    assert found.status == WARN
    assert "next-door (platform fedcba9876543210, 127.0.0.1)" in found.detail
    assert found.mend.endswith("platform: 0123456789abcdef")
    own = msgspec.structs.replace(stranger, platform="fedcba9876543210")
    heard = only(doctor.check_strangers(place(tmp_path, own)))
    assert (heard.status, heard.detail) == (OK, f"{own.where}: next-door")


def test_nobody_is_no_stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LISTEN_S", 0.05)
    quiet = msgspec.structs.replace(LOOPBACK, group=free_group(), port=free_port())
    found = only(doctor.check_strangers(place(tmp_path, quiet)))
    assert (found.status, found.detail) == (OK, f"{quiet.where}: nobody publishes")
