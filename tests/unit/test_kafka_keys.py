"""Keys at the Kafka endpoint: SASL/PLAIN, scopes, revocation, where it may listen, TLS."""

from __future__ import annotations

import contextlib
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import msgspec
import pytest
from tests.conftest import Eventually
from tests.support.kafka import TIMEOUT_S, Bare, Served, administration_of, batch_of

from tidecast.access import Scope, new_key
from tidecast.config.kafka import KafkaConfig
from tidecast.errors import ConfigError
from tidecast.kafka import connection
from tidecast.kafka.codes import Code
from tidecast.kafka.schemas import tables
from tidecast.kafka.server import make_kafka

TOPICS = [{"name": name, "mode": "durable", "fsync_interval_ms": 2} for name in ("mine", "other")]
SECRET, KEY = new_key("shop", [Scope(pattern="mine", rights=["publish", "subscribe"])])
READ_SECRET, READ_KEY = new_key("reader", [Scope(pattern="mine", rights=["subscribe"])])
ROOT_SECRET, ROOT_KEY = new_key("root", [Scope(pattern=">", rights=["manage"])])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("node")
    made = Served(directory, TOPICS, keys=[KEY, READ_KEY, ROOT_KEY])
    yield made
    made.close()


@pytest.fixture
def bare(served: Served) -> Iterator[Bare]:
    made = served.bare()
    yield made
    made.close()


def test_nothing_is_answered_before_the_login(served: Served) -> None:
    for key in tables.APIS:
        if key not in tables.BEFORE_LOGIN:
            bare = served.bare()
            assert bare.ask(tables.API_VERSIONS, 3, {})["error_code"] == 0
            bare.send(key, tables.APIS[key].last, {})
            assert bare.raw_answer() == b""
            bare.close()


def test_a_request_before_the_login_is_short(bare: Bare) -> None:
    bare.socket.sendall((connection.LOGIN_BYTES_MAX + 1).to_bytes(4, "big"))
    assert bare.raw_answer() == b""


def test_the_first_request_behind_the_login_may_be_long(bare: Bare) -> None:
    assert bare.log_in(KEY.name, SECRET) == 0
    long = batch_of(bytes(2 * connection.LOGIN_BYTES_MAX))
    assert bare.produce("mine", 0, long)["error_code"] == 0


def test_a_client_that_logged_in_may_be_silent(bare: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LOGIN_S", 0.2)
    assert bare.log_in(KEY.name, SECRET) == 0
    bare.socket.settimeout(0.5)
    with pytest.raises(TimeoutError):
        bare.socket.recv(1)  # it is not closed
    bare.socket.settimeout(TIMEOUT_S)
    assert bare.produce("mine", 0, batch_of(b"a"))["error_code"] == 0


def test_a_key_by_its_name_or_id(served: Served) -> None:
    for user in (KEY.name, KEY.id):
        bare = served.bare()
        assert bare.log_in(user, SECRET) == 0
        assert bare.produce("mine", 0, batch_of(b"a"))["error_code"] == 0
        bare.close()


@pytest.mark.parametrize(
    ("user", "secret"),
    [("shop", READ_SECRET), ("reader", SECRET), ("shop", ""), ("", SECRET)],
    ids=["another key's", "another name's", "no secret", "no name"],  # secrets are random
)
def test_wrong_keys(served: Served, bare: Bare, user: str, secret: str) -> None:
    before = served.endpoint.counters.of("logins_refused")
    assert bare.log_in(user, secret) == Code.SASL_AUTHENTICATION_FAILED
    assert served.endpoint.counters.of("logins_refused") == before + 1
    bare.send(tables.METADATA, 8, {"topics": None})
    assert bare.raw_answer() == b""


def test_other_mechanisms(bare: Bare) -> None:
    answer = bare.ask(tables.SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-256"})
    assert answer == {"error_code": Code.UNSUPPORTED_SASL_MECHANISM, "mechanisms": ["PLAIN"]}


def test_scopes(served: Served, bare: Bare) -> None:
    assert bare.log_in("reader", READ_SECRET) == 0
    topics = bare.ask(tables.METADATA, 8, {"topics": None})["topics"]
    assert [each["name"] for each in topics] == ["mine"]
    asked = bare.ask(tables.METADATA, 8, {"topics": [{"name": "other"}]})["topics"]
    assert asked[0]["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
    before = served.endpoint.counters.of("denied")
    denied = Code.TOPIC_AUTHORIZATION_FAILED
    assert bare.produce("mine", 0, batch_of(b"a"))["error_code"] == denied
    assert bare.fetch("mine", 0, 0)["error_code"] == 0
    assert bare.fetch("other", 0, 0)["error_code"] == denied
    assert bare.ask(tables.LIST_GROUPS, 2, {})["error_code"] == Code.GROUP_AUTHORIZATION_FAILED
    described = bare.ask(tables.DESCRIBE_GROUPS, 4, {"groups": ["g"]})["groups"]
    assert described[0]["error_code"] == Code.GROUP_AUTHORIZATION_FAILED
    assert served.endpoint.counters.of("denied") == before + 4
    counted = {row["name"]: row.get("denied", 0) for row in served.link.node.stats()["key"]}
    assert counted == {"reader": 4}


def test_a_key_that_is_revoked_ends_its_connections(served: Served, eventually: Eventually) -> None:
    secret, key = new_key("short", [Scope(pattern="mine", rights=["publish"])])
    served.link.node.keys.learn([msgspec.to_builtins(key)])
    bare = served.bare()
    assert bare.log_in("short", secret) == 0
    served.link.node.keys.learn([])
    assert bare.raw_answer() == b""
    eventually(lambda: served.endpoint.counters.of("keys_ended") == 1, "the count")
    bare.close()


def test_librdkafka_logs_in(served: Served) -> None:
    settings = {
        "bootstrap.servers": served.endpoint.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "shop",
        "sasl.password": SECRET,
    }
    told: list[object] = []
    producer = confluent_kafka.Producer(settings)
    producer.produce("mine", b"by key", on_delivery=lambda problem, _: told.append(problem))
    assert producer.flush(TIMEOUT_S) == 0
    assert told == [None]


def test_beyond_loopback_there_must_be_keys_and_tls(served: Served, short_dir: Path) -> None:
    node = served.link.node
    with pytest.raises(ConfigError, match=r"clear text.*--kafka-cert.*--insecure-kafka"):
        make_kafka(node, administration_of(node), KafkaConfig(listen="0.0.0.0:0"))
    assert make_kafka(
        node, administration_of(node), KafkaConfig(listen="0.0.0.0:0", insecure=True)
    ).needs_login
    bare = Served(short_dir, TOPICS)
    with pytest.raises(ConfigError, match="no keys"):
        make_kafka(
            bare.link.node,
            administration_of(bare.link.node),
            KafkaConfig(listen="0.0.0.0:0", insecure=True),
        )
    comes = KafkaConfig(listen="0.0.0.0:0", insecure=True)
    administration = administration_of(bare.link.node)
    assert make_kafka(bare.link.node, administration, comes, keys_come=True).needs_login
    assert not bare.endpoint.needs_login
    client = bare.bare()
    assert client.produce("mine", 0, batch_of(b"a"))["error_code"] == 0
    bare.link.node.keys.learn([msgspec.to_builtins(KEY)])  # from now on a key is needed
    assert client.raw_answer() == b""
    client.close()
    bare.close()


def self_signed(directory: Path) -> tuple[str, str]:
    """(certificate, key) for loopback, as files."""
    certificate, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out",
         str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return str(certificate), str(key)


def test_tls(served: Served, short_dir: Path, eventually: Eventually) -> None:
    certificate, key = self_signed(short_dir)
    node, administration = served.link.node, administration_of(served.link.node)
    swapped = KafkaConfig(listen=":0", certificate=key, key=certificate)
    with pytest.raises(ConfigError, match=r"kafka: certificate.*two PEM files"):
        make_kafka(node, administration, swapped)
    config = KafkaConfig(listen=":0", certificate=certificate, key=key)
    endpoint = make_kafka(node, administration, config)
    endpoint.start()
    old = ssl.create_default_context(cafile=certificate)
    bare = Bare(endpoint.port, tls=old)
    assert bare.log_in("shop", SECRET) == 0
    assert bare.produce("mine", 0, batch_of(b"sealed"))["error_code"] == 0

    self_signed(short_dir)

    def is_new() -> bool:
        with contextlib.suppress(ssl.SSLError):
            Bare(endpoint.port, tls=ssl.create_default_context(cafile=certificate)).close()
            return True
        return False

    eventually(is_new, "the new certificate")
    with pytest.raises(ssl.SSLError):
        Bare(endpoint.port, tls=old)
    assert bare.produce("mine", 0, batch_of(b"still"))["error_code"] == 0
    bare.close()
    endpoint.stop()
