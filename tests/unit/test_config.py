from __future__ import annotations

import ipaddress
import re
from pathlib import Path

import msgspec
import pytest

from tidecast.config import topology as config
from tidecast.config.check import parse_bytes, parse_duration_ns
from tidecast.config.topology import (
    FaultSettings,
    NodeConfig,
    TopicConfig,
    Topology,
    TransportConfig,
    add_topic,
    change_topic,
    check_pattern,
    check_topic_name,
    default_data_dir,
    default_topology,
    derive_topic_id,
    dump_topology,
    first_topology,
    is_pattern,
    load_topology,
    matches,
    own_topology,
    platform_topology,
    remove_topic,
    save_topology,
    shm_dir,
    topology_from,
    topology_path,
    with_identity,
)
from tidecast.config.yaml import parse_yaml
from tidecast.errors import ConfigError, Conflict, NotFound

GOOD = """
node: {id: 7, name: left, quarantined: [9]}
transports:
  - {name: lan, kind: udp-multicast, packet_bytes: 8000, socket_buffer_bytes: 8MiB}
  - {name: far, kind: udp-unicast, port: 7500, peers: ["127.0.0.1:7600"]}
topics:
  - {name: md.eu, reliability: unordered, labels: {team: rates}}
  - {name: logs, transport: far, history_bytes: 1 MiB}
"""


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        topology_from(parse_yaml(text, "t.yaml"), "t.yaml")
    return caught.value.problems


def test_a_good_file_loads(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(GOOD)
    topology = load_topology(path)
    assert topology.node.id == 7
    assert topology.transport("lan").socket_buffer_bytes == 8 << 20
    assert topology.transport("").name == "lan"
    assert topology.topics[0].transport == "lan"
    assert topology.topics[1].history_bytes == 1 << 20
    assert topology.transport("far").peer_addresses == [("127.0.0.1", 7600)]


def test_every_problem_is_named_at_once() -> None:
    found = problems(
        """
        node: {id: 70000, color: red}
        transports:
          - {name: a, packet_bytes: 70000, kind: tcp}
          - {name: b, gso: maybe, port: "x"}
        topics:
          - {linger_us: -1}
        nonsense: 1
        """
    )
    assert found == [
        "node.id: 70000: allowed 0..65534",
        "node.color: unknown setting: allowed " + ", ".join(NodeConfig.__struct_fields__),
        "transports[0].packet_bytes: 70000: allowed 576..65000, a multiple of 8",
        "transports[0].kind: tcp: allowed ipc, memory, udp-multicast, udp-unicast",
        "transports[1].gso: maybe: allowed true or false",
        "transports[1].port: x: allowed 1..65533",
        "topics[0].linger_us: -1: allowed 0..1000000",
        "topics[0].name: missing",
        "nonsense: unknown setting: allowed " + ", ".join(Topology.__struct_fields__),
    ]


def test_wrong_types_do_not_hide_what_else_is_wrong() -> None:
    assert problems(
        """
        node: {id: -1, name: 'a b'}
        transports:
          - {name: a, port: 0}
          - {name: a, packet_bytes: 1, group: 10.0.0.1}
        topics:
          - {name: x, transport: b, linger_us: -1}
        """
    ) == [
        "node.id: -1: allowed 0..65534",
        "transports[0].port: 0: allowed 1..65533",
        "transports[1].packet_bytes: 1: allowed 576..65000, a multiple of 8",
        "topics[0].linger_us: -1: allowed 0..1000000",
        "node.name: 'a b': allowed 1..64 of A-Z a-z 0-9 _ . -",
        "transports[1].name: a: used by another transport",
        (
            "transports[1].group: 10.0.0.1: allowed a multicast address, 224.0.1.0 .. "
            "239.255.255.255 (239.x.x.x is for private use)"
        ),
        "topics[0].transport: b: allowed a",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "[]: allowed is a mapping"),
        ("node: {id: '7'}", "node.id: '7': allowed 0..65534"),
        ("topics: 3", "topics: 3: allowed is a list"),
        ("topics: [3]", "topics[0]: 3: allowed is a mapping"),
        ("node: {nme: x}", "node.nme: unknown setting: did you mean name?"),
        ("node: {name: 'a b'}", "node.name: 'a b': allowed"),
        ("node: {id: 3, quarantined: [3]}", "this node itself"),
        ("node: {image_timeout_s: 0}", "node.image_timeout_s: 0: allowed >0..3600"),
        ("transports: [{name: a}, {name: a, port: 7500}]", "used by another transport"),
        ("transports: [{name: a}, {name: b, port: 7402}]", "transports[1].port: 7402"),
        ("transports: [{name: a, group: 10.0.0.1}]", "transports[0].group: 10.0.0.1"),
        ("transports: [{name: a, group: 224.0.0.5}]", "transports[0].group: 224.0.0.5"),
        ("transports: [{name: a, interface: 1.2.3}]", "transports[0].interface: 1.2.3"),
        ("transports: [{name: a, interface: 'a/b'}]", "transports[0].interface"),
        ("transports: [{name: a, peers: ['h:1']}]", "transports[0].peers"),
        ("transports: [{name: a, kind: udp-unicast, peers: [h]}]", "peers[0]: h: allowed"),
        ("transports: [{name: a, kind: udp-unicast, bind: 'h h'}]", "transports[0].bind"),
        ("transports: [{name: a, packet_bytes: 1001}]", "packet_bytes: 1001: allowed 576..65000"),
        ("transports: [{name: a, socket_buffer_bytes: 3 elephants}]", "not a size"),
        ("topics: [{name: a..b}]", "topics[0].name: a..b: allowed tokens"),
        (f"topics: [{{name: {'a' * 201}}}]", "at most 200 bytes"),
        ("topics: [{name: a}, {name: a}]", "topics[1].name: a: declared twice"),
        ("topics: [{name: a, transport: x}]", "topics[0].transport: x: allowed ipc, multicast"),
        ("topics: [{name: a, labels: {x: 1}}]", "topics[0].labels"),
        ("topics: [{name: a, id: true}]", "topics[0].id: true: allowed 1..65535"),
        ("{1: 2}", "1: unknown setting"),
    ],
)
def test_a_problem_is_named(text: str, problem: str) -> None:
    assert problem in problems(text)[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "line 1, column 5"),
        ("node: {id: 1}\nnode: {id: 2}", "line 2, column 1: node: given twice"),
        ("\x00", "not YAML"),
        ("[" * 100_000, "not YAML"),
        ("!!python/object:os.system {}", "could not determine a constructor"),
    ],
)
def test_bad_yaml_says_where(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse_yaml(text, "t.yaml")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no topology file"):
        load_topology(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_topology(tmp_path / "binary.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_topology(tmp_path)


def test_many_problems_are_cut_in_the_message_not_in_the_list() -> None:
    text = "topics: [" + ",".join("{name: 'a b'}" for _ in range(50)) + "]"
    with pytest.raises(ConfigError) as caught:
        topology_from(parse_yaml(text, ""))
    assert str(caught.value).count("\n") == 21
    assert len(caught.value.problems) >= 50


def test_an_empty_file_is_the_default(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("")
    assert load_topology(path) == default_topology()
    assert default_topology().transports[0].ttl_hops == 0


def test_saved_and_loaded_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "topology.yaml"
    topology = topology_from(parse_yaml(GOOD, ""))
    save_topology(topology, path)
    assert load_topology(path) == topology
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["topology.yaml"]
    assert "packet_bytes: 8000" in dump_topology(topology)


def test_save_fails_clearly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        save_topology(default_topology(), tmp_path / "file" / "topology.yaml")


def test_identity_is_stable_and_differs_by_directory(tmp_path: Path) -> None:
    one = with_identity(Topology(), tmp_path / "a")
    assert one == with_identity(Topology(), tmp_path / "a")
    other = with_identity(Topology(), tmp_path / "b")
    assert other.node.id != one.node.id
    assert 1 <= one.node.id <= config.NODE_ID_MAX
    told = with_identity(Topology(node=NodeConfig(id=5, name="x")), tmp_path)
    assert (told.node.id, told.node.name) == (5, "x")


def test_topic_ids_are_stable() -> None:
    assert TopicConfig(name="a", id=3).wire_id == 3
    assert TopicConfig(name="md.eu").wire_id == derive_topic_id("md.eu")
    ids = {derive_topic_id(f"t{i}") for i in range(4096)}
    assert min(ids) >= 1
    assert max(ids) <= 65_535
    assert len(ids) > 3900


def test_golden_topic_id() -> None:
    """Nodes of different versions must agree."""
    assert derive_topic_id("md.eu") == 33203


def test_an_id_that_is_given_twice_names_both_and_a_free_one() -> None:
    (problem,) = problems("topics: [{name: a, id: 5}, {name: b, id: 5}]")
    assert "topics[1].id: 5: topic a is given the same" in problem
    assert "6 is free" in problem


def test_ids_made_from_names_may_collide() -> None:
    names = [f"s.{i}" for i in range(1000)]
    assert len({derive_topic_id(name) for name in names}) < 1000, "else this shows nothing"
    taken = derive_topic_id("s.0")
    topics = [TopicConfig(name=name) for name in names] + [TopicConfig(name="b", id=taken)]
    assert len(topology_from(Topology(topics=topics)).topics) == 1001


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*.b", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("*.b.>", "a.b.c.d", True),
        ("*", "a.b", False),
    ],
)
def test_patterns(pattern: str, name: str, expected: bool) -> None:
    assert check_pattern(pattern) == pattern
    assert matches(pattern, name) is expected
    assert is_pattern(pattern) is (pattern != name and ("*" in pattern or ">" in pattern))


@pytest.mark.parametrize("pattern", ["", ".", "a.>.b", "a*", "a.", "a..b", "é", "*" * 0 + "a b"])
def test_bad_patterns(pattern: str) -> None:
    with pytest.raises(ConfigError, match="allowed"):
        check_pattern(pattern)


def test_topic_names() -> None:
    assert check_topic_name("md.-eu-1_x") == "md.-eu-1_x"
    for bad in ("", "a.", "*", "a b", "a" * 201, "-a", "-a.b"):
        with pytest.raises(ConfigError):
            check_topic_name(bad)


def test_topics_are_added_changed_removed() -> None:
    topology = add_topic(default_topology(), TopicConfig(name="a"))
    assert topology.topics[0].transport == "multicast"
    with pytest.raises(Conflict):
        add_topic(topology, TopicConfig(name="a"))
    with pytest.raises(ConfigError, match=r"^topic b: linger_us: -5: allowed"):
        add_topic(topology, TopicConfig(name="b", linger_us=-5))
    changed = change_topic(topology, "a", {"linger_us": 5, "history_bytes": "1MiB"})
    assert changed.topics[0].linger_us == 5
    assert changed.topics[0].history_bytes == 1 << 20
    with pytest.raises(ConfigError, match="linger_us: x"):
        change_topic(topology, "a", {"linger_us": "x"})
    with pytest.raises(ConfigError, match="renamed"):
        change_topic(topology, "a", {"name": "b"})
    with pytest.raises(NotFound):
        change_topic(topology, "b", {})
    assert remove_topic(changed, "a").topics == []
    with pytest.raises(NotFound):
        remove_topic(changed, "b")
    with pytest.raises(NotFound, match="there are multicast, ipc"):
        topology.transport("x")


def test_data_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDECAST_DATA_DIR", str(tmp_path))
    assert default_data_dir() == tmp_path
    monkeypatch.delenv("TIDECAST_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert default_data_dir() == tmp_path / "xdg" / "tidecast"
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    assert default_data_dir() == Path("~/.local/share/tidecast").expanduser()


def test_shm_dir_is_one_per_data_dir(tmp_path: Path) -> None:
    assert shm_dir(tmp_path / "a") != shm_dir(tmp_path / "b")
    assert shm_dir(tmp_path / "a") == shm_dir(tmp_path / "a")


def test_sizes_and_durations() -> None:
    assert parse_bytes("4MiB") == 4 << 20
    assert parse_bytes("1.5 kB") == 1500
    assert parse_duration_ns("2ms") == 2_000_000
    assert parse_duration_ns("1.5s") == 1_500_000_000
    for bad in ("", "x", "5 parsecs", "-1"):
        with pytest.raises(ConfigError):
            parse_bytes(bad)
        with pytest.raises(ConfigError):
            parse_duration_ns(bad)


def test_faults_and_derived_settings() -> None:
    assert not FaultSettings().any
    assert FaultSettings(partition=("a",)).any
    assert TransportConfig(name="a", interface="eth0").ttl_hops == 1
    assert TransportConfig(name="a", ttl=8).ttl_hops == 8
    assert TransportConfig(name="a", bind="0.0.0.0").bind_host == "0.0.0.0"
    assert FaultSettings(drop=1.5, seed=-1).problems() == [
        "faults.drop: 1.5: allowed 0.0..1.0",
        "faults.seed: -1: allowed 0..4611686018427387903",
    ]
    faults = FaultSettings(drop=0.5, partition=("a", "3"))
    assert faults.problems() == []
    assert msgspec.json.decode(msgspec.json.encode(faults), type=FaultSettings) == faults


def test_durable_topics_grow_and_never_shrink() -> None:
    topology = add_topic(default_topology(), TopicConfig(name="orders", mode="durable", queues=4))
    assert change_topic(topology, "orders", {"queues": 6}).topics[0].queues == 6
    with pytest.raises(ConfigError, match="queues: 2: there are 4, and queues only grow"):
        change_topic(topology, "orders", {"queues": 2})
    with pytest.raises(ConfigError, match=r"queues: 2000: allowed 1\.\.1024"):
        change_topic(topology, "orders", {"queues": 2000})
    with pytest.raises(ConfigError, match="a durable topic loses nothing"):
        change_topic(topology, "orders", {"reliability": "unreliable"})


def test_a_live_topic_takes_no_settings_of_queues() -> None:
    topology = topology_from({})
    with pytest.raises(ConfigError, match="queues: 3: the topic is live"):
        add_topic(topology, TopicConfig(name="x", queues=3))
    made = add_topic(topology, TopicConfig(name="x", queues=3, mode="durable"))
    with pytest.raises(ConfigError, match="queues: 3: the topic is live"):
        change_topic(made, "x", {"mode": "live"})


def test_a_platform_has_a_group_and_ports_of_its_own() -> None:
    """Golden: a file that names the platform alone would join by these."""
    one = platform_topology("0123456789abcdef").transports[0]
    assert (one.platform, one.group, one.port) == ("0123456789abcdef", "239.195.205.239", 23_366)
    assert one.interface == "127.0.0.1"
    drawn = [platform_topology(f"{i * 0x9E3779B97F4A7C15 % 2**64:016x}") for i in range(1000)]
    places = {(each.transports[0].group, each.transports[0].port) for each in drawn}
    assert len(places) == 1000
    for group, port in places:
        assert ipaddress.IPv4Address(group) in ipaddress.ip_network("239.192.0.0/14")
        assert 20_000 <= port <= 28_997


def test_transports_of_a_file_keep_the_group_and_port_that_they_had(tmp_path: Path) -> None:
    """No platform that exists moves to another network when it is upgraded."""
    path = topology_path(tmp_path)
    for text in ("{}", "transports: [{name: m}]", "transports: [{name: m, kind: udp-multicast}]"):
        path.write_text(text)
        first = load_topology(path).transports[0]
        assert (first.group, first.port, first.platform) == ("239.255.84.67", 7400, "")


def test_a_platforms_id_has_sixteen_hex_digits() -> None:
    for wrong in ("x", "0123456789ABCDEF", "0123456789abcde", "0" * 17):
        with pytest.raises(ConfigError, match=r"transports\[0\].platform"):
            topology_from({"transports": [{"name": "m", "platform": wrong}]})


def test_programs_of_a_user_share_the_transports_of_his_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDECAST_DATA_DIR", str(tmp_path))
    alone = own_topology()
    assert alone == own_topology()
    assert alone.transports[0].group != "239.255.84.67"
    platform = first_topology(tmp_path)
    save_topology(platform, topology_path(tmp_path))
    assert own_topology().transports == platform.transports
    topology_path(tmp_path).write_text("transports: [{name: m, secure: required}]")
    assert own_topology() == alone, "it has no keys"
