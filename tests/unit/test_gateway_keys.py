"""Keys of remote clients: scopes by topic, expiry, revocation; denials are told and counted."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.support.gateways import TIMEOUT_S, local, make_gateway, remote, until_event

import tidecast.sync
from tidecast.access import Access, ClientKey, Scope, covers, new_key
from tidecast.config.topology import dump_topology, matches, topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.engine.process import Engine
from tidecast.errors import AuthError, ConfigError
from tidecast.events import AccessDenied, EngineLost
from tidecast.gateway.server import Gateway, is_loopback, open_gateway
from tidecast.node.access.keys import KEYS_NAME, KeyRing

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECRET, KEY = new_key(
    "shop",
    [
        Scope(pattern="orders.*", rights=["publish", "subscribe"]),
        Scope(pattern="orders.eu", rights=["manage"]),
        Scope(pattern="audit.>", rights=["publish"]),
    ],
)
TOPICS = [
    {"name": name, "transport": "ipc", "mode": "durable", "fsync": "none"}
    for name in ("orders.eu", "orders.us", "secret")
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLink]:
    settings = {
        "transports": [{"name": "ipc", "kind": "ipc"}],
        "topics": TOPICS,
        "keys": [msgspec.to_builtins(KEY)],
    }
    link = EmbeddedLink.open(
        topology_from(settings), data_dir=tmp_path_factory.mktemp("node"), name="host"
    )
    yield link
    link.close()


@pytest.fixture
def gateway(node: EmbeddedLink) -> Iterator[Gateway]:
    made = make_gateway(node, find_key=node.node.keys.find, tell=node.node.tell_all)
    yield made
    made.stop()


@pytest.fixture
def shop(gateway: Gateway) -> Iterator[Any]:
    with remote(gateway.url, "shop", token=SECRET) as client:
        yield client


# --- what a key may do -------------------------------------------------------------------------
def test_a_key_does_what_its_scopes_say(gateway: Gateway, shop: Any) -> None:
    with shop.consumer("orders.eu", "billing") as consumer:
        shop.publish("orders.eu", b"1", ack="durable")
        batch = consumer.fetch(1, TIMEOUT_S)
        assert batch.payloads() == [b"1"]
        batch.ack()
        consumer.pause()
        consumer.resume()
        assert consumer.info()["name"] == "billing"
    shop.publish("audit.a.b", b"2")
    with shop.subscribe("orders.*"):
        pass
    assert set(shop.stats()) == {"gateway", "client"}, "counters of others' topics are not told"
    assert gateway.counts["denied"] == 0


def attempts(client: Any) -> dict[str, Any]:
    return {
        "publish": lambda: client.publisher("secret"),
        "subscribe": lambda: client.subscribe("secret").open(),
        "wide pattern": lambda: client.subscribe("orders.>").open(),
        "all": lambda: client.subscribe(">").open(),
        "right of another kind": lambda: client.subscribe("audit.a").open(),
        "consumer": lambda: client.consumer("secret", "x"),
        "dead letters elsewhere": lambda: client.consumer("orders.eu", "y", dead_letter="secret"),
        "manage": lambda: client.link.subscription("create", {"pattern": "orders.us", "name": "z"}),
        "look": lambda: client.link.subscription("show", {"pattern": "secret", "name": "x"}),
    }


@pytest.mark.parametrize("what", list(attempts(None)))
def test_what_its_scopes_do_not_say_is_denied(
    node: EmbeddedLink, gateway: Gateway, shop: Any, what: str
) -> None:
    with local(node) as near:
        with pytest.raises(AuthError, match=r"key shop lacks the right \w+ on \S+"):
            attempts(shop)[what]()
        told = until_event(near, AccessDenied)
        assert (told.key, told.client) == ("shop", "remote shop")
        assert gateway.counts["denied"] == 1
        assert shop.health().healthy, "a denial ends nothing else"


def test_lists_show_only_what_the_key_covers(node: EmbeddedLink, shop: Any) -> None:
    with local(node) as near, near.consumer("secret", "hidden"), near.consumer("orders.us", "seen"):
        names = {each["name"] for each in shop.link.subscription("list", {})}
        assert "seen" in names
        assert "hidden" not in names


def test_unknown_tokens_are_counted_and_told(node: EmbeddedLink, gateway: Gateway) -> None:
    with local(node) as near:
        with pytest.raises(AuthError, match="refuses the token"):
            remote(gateway.url, token=SECRET[:-1] + "x")
        assert until_event(near, AccessDenied).right == "connect"
    assert gateway.counts["refused"] == 1


# --- keys that end -----------------------------------------------------------------------------
def test_a_revoked_key_ends_its_sessions(node: EmbeddedLink, tmp_path: Path) -> None:
    ring = KeyRing([], tmp_path / KEYS_NAME)
    ring.learn([msgspec.to_builtins(KEY)])
    gateway = make_gateway(node, find_key=ring.find)
    try:
        with remote(gateway.url, token=SECRET) as client:
            client.publish("orders.eu", b"1")
            consumer, subscription = client.consumer("orders.us", "a"), client.subscribe("orders.*")
            with subscription:
                ring.learn([])
                with pytest.raises(AuthError):  # it waits when that happens
                    consumer.fetch(1, TIMEOUT_S)
                assert gateway.counts["keys_ended"] == 1
                until_event(client, EngineLost)
                with pytest.raises(AuthError):
                    client.publish("orders.eu", b"2")
                with pytest.raises(AuthError):
                    subscription.next(timeout=TIMEOUT_S)
        with pytest.raises(AuthError):
            remote(gateway.url, token=SECRET)
        assert not gateway.stats()["sessions"]
    finally:
        gateway.stop()


def test_keys_that_were_told_outlive_a_restart_and_declared_ones_stay(tmp_path: Path) -> None:
    path = tmp_path / KEYS_NAME
    secret, told = new_key("told", [], expires=NOW)
    ring = KeyRing([KEY], path, lambda: NOW - timedelta(seconds=1))
    assert ring.find(told.sha256) is None
    ring.learn([msgspec.to_builtins(told)])
    assert path.stat().st_mode & 0o077 == 0
    assert secret not in path.read_text()
    again = KeyRing([KEY], path, lambda: NOW - timedelta(seconds=1))
    assert again.find(told.sha256) == Access(told.id, "told", ())
    assert KeyRing([KEY], path, lambda: NOW).find(told.sha256) is None, "expired"
    again.learn([])
    assert again.find(told.sha256) is None
    assert again.find(KEY.sha256) is not None
    path.write_text("{}")
    with pytest.raises(ConfigError, match="no list of keys"):
        KeyRing([], path)
    with pytest.raises(ConfigError, match="keys"):
        again.learn([{"id": "x", "sha256": "short"}])


# --- secure by default -------------------------------------------------------------------------
def test_without_keys_only_loopback_is_listened_on(tmp_path: Path) -> None:
    class Bare:
        keys = KeyRing([], tmp_path / KEYS_NAME)

    for where in ("0.0.0.0:0", "[::]:0", "192.0.2.1:7400", "db1.example:7400"):
        with pytest.raises(ConfigError, match="tidecast key new"):
            open_gateway(Bare(), tmp_path, where)
    assert is_loopback("127.0.0.9")
    assert is_loopback("::1")
    assert is_loopback("localhost")


def test_with_keys_all_may_be_listened_on(node: EmbeddedLink, tmp_path: Path) -> None:
    gateway = open_gateway(node.node, tmp_path, "0.0.0.0:0")
    try:
        with remote(f"tidecast://127.0.0.1:{gateway.port}", token=SECRET) as client:
            assert client.health().healthy
            rows = {row.kind: row for row in node.node.counters.rows()}
            assert rows["gateway"].values[0] == 1
            assert node.node.stats()["gateway"][0]["sessions"] == 1
    finally:
        gateway.stop()


# --- patterns, files, the command --------------------------------------------------------------
TOKENS = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3)
PATTERNS = st.builds(lambda ts, tail: ".".join(ts + tail), TOKENS, st.sampled_from([[], [">"]]))
NAMES = st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map(".".join)


@given(PATTERNS, PATTERNS, NAMES)
def test_what_is_covered_is_matched(wide: str, narrow: str, name: str) -> None:
    """A pattern that covers another matches every topic of it; a name is covered if matched."""
    assert covers(wide, name) == matches(wide, name)
    if covers(wide, narrow) and matches(narrow, name):
        assert matches(wide, name)


def test_keys_survive_the_topology_file() -> None:
    secret, made = new_key("x", [Scope(pattern=">", rights=["manage"])], NOW)
    topology = topology_from({"keys": [msgspec.to_builtins(made)]})
    again = topology_from(yaml.safe_load(dump_topology(topology)))
    assert again.keys == [made]
    assert secret not in dump_topology(again)
    with pytest.raises(ConfigError, match=r"keys\[0\].sha256"):
        topology_from({"keys": [{"id": "a", "sha256": "0"}]})


def test_the_command_makes_what_the_file_takes() -> None:
    from tidecast.cli.key import new

    out = io.StringIO()
    with redirect_stdout(out):
        new.main(
            ["shop", "--allow", "publish:orders.*", "--expires", "2030-01-31"],
            standalone_mode=False,
        )
    text = out.getvalue()
    secret = text.splitlines()[0].split(": ")[1]
    (key,) = topology_from(yaml.safe_load(text)).keys
    ring = KeyRing([key], Path("nowhere"), lambda: NOW)
    from tidecast.access import digest_of

    found = ring.find(digest_of(secret))
    assert found is not None
    assert found.may("publish", "orders.eu")
    assert not found.may("subscribe", "orders.eu")
    assert isinstance(key, ClientKey)
    assert secret not in text.split("\n", 1)[1]


# --- local clients -----------------------------------------------------------------------------
def test_local_clients_show_keys_where_the_topology_says_so(short_dir: Path) -> None:
    _, admin_key = admin = new_key("admin", [Scope(pattern=">", rights=["manage"])])
    settings = {
        "node": {"local_keys": True},
        "transports": [{"name": "ipc", "kind": "ipc"}],
        "keys": [msgspec.to_builtins(KEY), msgspec.to_builtins(admin_key)],
    }
    engine = Engine(short_dir, topology_from(settings))
    engine.start()
    try:
        for token in (None, "wrong"):
            with pytest.raises(AuthError, match="wants a key"):
                tidecast.sync.connect(f"tidecast://{short_dir}", token=token)
        with tidecast.sync.connect(f"tidecast://{short_dir}", token=SECRET, name="near") as client:
            client.publish("orders.eu", b"1")
            with pytest.raises(AuthError, match="key shop lacks the right publish on secret"):
                client.publish("secret", b"1")
            with pytest.raises(AuthError, match="manage on >"):
                client.stats()
        with tidecast.sync.connect(f"tidecast://{short_dir}", token=admin[0]) as client:
            (row,) = client.stats()["gateway"]
            assert (row["name"], row["refused"], row["denied"]) == ("socket", 2, 2)
    finally:
        engine.stop()
