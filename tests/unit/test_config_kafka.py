"""The topology's section `kafka`, and the options of a command in front of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidecast.config.kafka import KafkaConfig, with_options
from tidecast.config.topology import dump_topology, load_topology, topology_from
from tidecast.config.yaml import parse_yaml
from tidecast.errors import ConfigError

GOOD = """
kafka:
  listen: "[::1]:9092"
  advertised: kafka.example:19092
  certificate: /etc/tidecast/cert.pem
  key: /etc/tidecast/key.pem
  connections_max: 12
  request_bytes_max: 2MiB
"""


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        topology_from(parse_yaml(text, "t.yaml"), "t.yaml")
    return caught.value.problems


def test_a_good_section_is_loaded_and_saved(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(GOOD)
    kafka = load_topology(path).kafka
    assert (kafka.is_on, kafka.address) == (True, ("::1", 9092))
    assert (kafka.connections_max, kafka.request_bytes_max) == (12, 2 << 20)
    path.write_text(dump_topology(load_topology(path)))
    assert load_topology(path).kafka == kafka


def test_without_a_section_there_is_no_endpoint() -> None:
    topology = topology_from({})
    assert not topology.kafka.is_on
    assert "kafka" not in dump_topology(topology)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("listen: 9092x", "kafka.listen: 9092x: allowed are HOST:PORT, :PORT for loopback, off"),
        ('listen: ":70000"', "kafka.listen: :70000: allowed are HOST:PORT"),
        ("advertised: nowhere", "kafka.advertised: nowhere: allowed are HOST:PORT"),
        ("certificate: /c.pem", "kafka.key: missing: a certificate and its key belong together"),
        ("key: /k.pem", "kafka.certificate: missing: a certificate and its key belong together"),
        ("{certificate: c.pem, key: /k.pem}", "kafka.certificate: c.pem: allowed is an absolute"),
        ("connections_max: 0", "kafka.connections_max: 0: allowed 1..65536"),
        (
            "request_bytes_max: 1GiB",
            "kafka.request_bytes_max: 1073741824: allowed 1048576..17825792",
        ),
        ("lissten: off", "kafka.lissten: unknown setting: did you mean listen?"),
    ],
)
def test_what_is_wrong_is_named(text: str, problem: str) -> None:
    body = text if text.startswith("{") else "{" + text + "}"
    (found,) = problems(f"kafka: {body}")
    assert found.startswith(problem)


def test_options_go_before_the_section() -> None:
    section = KafkaConfig(listen=":9092", connections_max=7)
    assert with_options(section, {}) == section
    assert not with_options(section, {"listen": "off"}).is_on
    given = with_options(section, {"listen": "127.0.0.1:1", "insecure": True})
    assert (given.address, given.insecure, given.connections_max) == (("127.0.0.1", 1), True, 7)
    with pytest.raises(ConfigError, match=r"kafka\.listen: nowhere: allowed are HOST:PORT"):
        with_options(section, {"listen": "nowhere"})
    with pytest.raises(ConfigError, match=r"kafka\.key: missing"):
        with_options(section, {"certificate": "/c.pem"})


def test_topics_on_a_cluster_are_loaded_and_saved(tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text("adapters: [{topic: orders, kafka: {servers: 'a:1,b:2', topic: shop}}]")
    topology = load_topology(path)
    (one,) = topology.adapters
    assert one.kafka is not None
    assert (one.topic, one.kafka.topic) == ("orders", "shop")
    assert one.kafka.addresses == [("a", 1), ("b", 2)]
    path.write_text(dump_topology(topology))
    assert load_topology(path) == topology


@pytest.mark.parametrize(
    ("adapter", "problem"),
    [
        ({"topic": "o", "kafka": {"servers": "a", "topic": "t"}}, "adapters[0].kafka.servers: a: "),
        ({"topic": "o", "kafka": {"servers": "a:1"}}, "adapters[0].kafka.topic: missing"),
        (
            {"topic": "o", "kafka": {"servers": "a:1", "topic": "t", "secret_file": "/s"}},
            "adapters[0].kafka.user: missing",
        ),
        (
            {"topic": "taken", "kafka": {"servers": "a:1", "topic": "t"}},
            "adapters[0].topic: taken: another topic has this name",
        ),
    ],
)
def test_what_is_wrong_with_a_topic_on_a_cluster_is_named(
    adapter: dict[str, object], problem: str
) -> None:
    topics = [{"name": "taken", "mode": "durable"}]
    with pytest.raises(ConfigError) as caught:
        topology_from({"topics": topics, "adapters": [adapter]})
    assert problem in str(caught.value)
