"""Keys of remote clients: scopes by topic, expiry, revocation; denials are reported and counted."""

from __future__ import annotations

import asyncio
import io
import itertools
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console
from tests.conftest import Eventually
from tests.support.gateways import TIMEOUT_S, local, make_gateway, remote, until_event
from websockets.sync.client import connect

import tidecast.sync
from tidecast.access import (
    Access,
    ClientKey,
    Quota,
    Scope,
    covers,
    digest_of,
    is_loopback,
    new_key,
)
from tidecast.cli import main, top
from tidecast.client.remote import frames
from tidecast.config.certificate import Certificate
from tidecast.config.topology import dump_topology, matches, topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.engine.process import Engine
from tidecast.errors import AuthError, ConfigError, Conflict, EngineNotRunning, TidecastError
from tidecast.events import AccessDenied, EngineLost, GatewayLost
from tidecast.gateway import publications
from tidecast.gateway.consumers import RemoteConsumer
from tidecast.gateway.publications import RemotePublication
from tidecast.gateway.server import Gateway, open_gateway
from tidecast.gateway.session import RemoteSession
from tidecast.gateway.settings import GatewaySettings
from tidecast.layout.counters import GatewayCounter
from tidecast.node.access import rights
from tidecast.node.access.key_counts import KeyCounts
from tidecast.node.access.keys import KEYS_NAME, KeyRing
from tidecast.node.access.rights import Denials

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
    made = make_gateway(node, find_key=node.node.keys.find, notify=node.node.notify_all)
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
        "manage": lambda: client.link.administer("create", {"pattern": "orders.us", "name": "z"}),
        "a subscription of its own": lambda: client.consumer("orders.us", "z"),
        "letters of its own elsewhere": lambda: client.link.administer(
            "create", {"pattern": "orders.eu", "name": "z", "dead_letter": "secret"}
        ),
        "letters sent elsewhere": lambda: client.link.administer(
            "redrive", {"pattern": "orders.eu", "name": "z", "to": "secret"}
        ),
        "an action that nobody knows": lambda: client.link.administer(
            "format", {"pattern": "orders.eu", "name": "z"}
        ),
        "look": lambda: client.link.administer("show", {"pattern": "secret", "name": "x"}),
    }


@pytest.mark.parametrize("what", list(attempts(None)))
def test_what_its_scopes_do_not_say_is_denied(
    node: EmbeddedLink, gateway: Gateway, shop: Any, what: str
) -> None:
    with local(node) as near:
        with pytest.raises(AuthError, match=r"right \w+ on \S+"):
            attempts(shop)[what]()
        told = until_event(near, AccessDenied)
        assert (told.key, told.client) == ("shop", "remote shop")
        assert gateway.counts["denied"] == 1
        assert shop.health().healthy, "a denial ends nothing else"


def test_refusals_are_counted_by_key_where_operators_look(node: EmbeddedLink) -> None:
    counts, scopes = KeyCounts(lambda: node.node.counters), tuple(KEY.scopes)
    found = {
        KEY.sha256: Access(KEY.id, "one", scopes, Quota(publications=1)),
        digest_of("other" * 8): Access("k2", "two", scopes, Quota()),
    }
    gateway = make_gateway(node, find_key=found.get, count_key=counts.count)
    try:
        for token, times in ((SECRET, 2), ("other" * 8, 1)):
            with remote(gateway.url, "shop", token=token) as client:
                for _ in range(times):
                    with pytest.raises(AuthError):
                        client.publisher("secret")
                held = client.publisher("orders.eu")
                if token == SECRET:
                    with pytest.raises(Conflict):
                        client.publisher("orders.eu")
                held.close()
    finally:
        gateway.stop()
    shown = top.view(top.snapshot(node.node.counters.rows(), 1.0), [], "host")
    rows = {row["name"]: row for row in shown["key"]}
    assert rows["one"] == {"name": "one", "denied": 2, "over_quota": 1}
    assert rows["two"] == {"name": "two", "denied": 1, "over_quota": 0}
    out = Console(width=120, record=True)
    out.print(top.render(shown))
    assert "Refused requests by key" in out.export_text()


def test_lists_show_only_what_the_key_covers(node: EmbeddedLink, shop: Any) -> None:
    with local(node) as near, near.consumer("secret", "hidden"), near.consumer("orders.us", "seen"):
        names = {each["name"] for each in shop.link.administer("list", {})}
        assert "seen" in names
        assert "hidden" not in names


def test_what_a_node_has_is_listed_as_the_key_covers_it(node: EmbeddedLink, shop: Any) -> None:
    for name in ("secret", "orders.us"):
        node.node.topic(name)
    rows = shop.link.administer("topics", {})["rows"]
    names = {row["name"] for row in rows}
    assert "orders.us" in names
    assert "secret" not in names
    for action in ("counters", "receivers"):
        with pytest.raises(AuthError, match="manage"):
            shop.link.administer(action, {})
    with pytest.raises(AuthError, match="manage on secret"):
        shop.link.administer("delete_topic", {"topic": "secret"})


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
            with local(node) as near:
                near.consumer("orders.us", "a").close()  # who only subscribes joins what is there
            consumer, subscription = client.consumer("orders.us", "a"), client.subscribe("orders.*")
            with subscription:
                ring.learn([])
                with pytest.raises(AuthError):  # it waits when that happens
                    consumer.fetch(1, TIMEOUT_S)
                assert gateway.counts["keys_ended"] == 1
                until_event(client, EngineLost)
                assert (client.health().healthy, client.health().status) == (False, "refused")
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
    assert again.find(told.sha256) == Access(told.id, "told", (), told.quota)
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
            open_gateway(Bare(), tmp_path, GatewaySettings(where, insecure=True))
    assert is_loopback("127.0.0.9")
    assert is_loopback("::1")
    assert is_loopback("localhost")


def test_with_keys_all_may_be_listened_on(node: EmbeddedLink, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"clear text.*--gateway-cert.*--insecure-gateway"):
        open_gateway(node.node, tmp_path, GatewaySettings("0.0.0.0:0"))

    def sessions() -> int:
        rows = [row.values for row in node.node.counters.rows() if row.kind == "gateway"]
        return sum(int(values[GatewayCounter.SESSIONS]) for values in rows)

    def shown() -> int:
        return sum(int(each.get("sessions", 0)) for each in node.node.stats()["gateway"])

    counted = sessions()  # those that gateways of other tests keep for their clients
    gateway = open_gateway(node.node, tmp_path, GatewaySettings("0.0.0.0:0", insecure=True))
    try:
        with remote(f"tidecast://127.0.0.1:{gateway.port}", token=SECRET) as client:
            assert client.health().healthy
            assert (sessions(), shown()) == (counted + 1, counted + 1)
    finally:
        gateway.stop()


def test_an_engine_asks_for_keys_before_it_is_reached_from_other_hosts(short_dir: Path) -> None:
    """Companions, such as adapters and telemetry, bring no keys: a control service does."""
    bare = topology_from({"transports": [{"name": "ipc", "kind": "ipc"}]})

    def companion(_node: Any, _store: Any) -> Any:
        return SimpleNamespace(start=lambda: None, stop=lambda: None)

    settings = GatewaySettings("0.0.0.0:0", insecure=True)
    engine = Engine(short_dir, bare, gateway=settings, companions=(companion,))
    with pytest.raises(ConfigError, match="no keys to check their clients with"):
        engine.start()


# --- sessions, quotas, defects -----------------------------------------------------------------
def hello(url: str, token: str, session: str = "", key: str = "") -> frames.Welcome:
    """The gateway's answer to a client that wants to resume a session."""
    with connect(
        url.replace("tidecast://", "ws://") + frames.PATH,
        additional_headers={"Authorization": f"Bearer {token}"},
        proxy=None,
    ) as socket:
        socket.send(frames.encode(frames.Hello(name="thief", session=session, key=key)))
        data = socket.recv(TIMEOUT_S)
        assert isinstance(data, bytes)
        welcome, _ = frames.from_gateway(data)
        assert isinstance(welcome, frames.Welcome)
        return welcome


def test_a_session_is_resumed_with_the_key_that_began_it(node: EmbeddedLink) -> None:
    other, other_key = new_key("other", [Scope(pattern="secret", rights=["subscribe"])])
    found = {k.sha256: Access(k.id, k.name, tuple(k.scopes)) for k in (KEY, other_key)}
    gateway = make_gateway(node, find_key=found.get)
    try:
        first = hello(gateway.url, SECRET)
        stolen = hello(gateway.url, other, first.session, first.key)
        assert not stolen.resumed
        assert stolen.session != first.session
        guessed = hello(gateway.url, SECRET, first.session, "0" * 32)
        assert not guessed.resumed
        assert hello(gateway.url, SECRET, first.session, first.key).resumed
    finally:
        gateway.stop()


def test_the_clients_of_a_key_share_its_quota(node: EmbeddedLink) -> None:
    quota = Quota(publications=3, consumers=1, ring_bytes=64 << 20)
    scopes = tuple(KEY.scopes)
    found = {KEY.sha256: Access(KEY.id, "shop", scopes, quota)}
    gateway = make_gateway(node, find_key=found.get, notify=node.node.notify_all)
    try:
        with (
            remote(gateway.url, "a", token=SECRET) as a,
            remote(gateway.url, "b", token=SECRET) as b,
        ):
            kept = [a.publisher("audit.a"), a.publisher("audit.b"), b.publisher("audit.c")]
            with pytest.raises(Conflict, match=r"publications: 3 held .* key shop.*allowed 3"):
                b.publisher("audit.d")
            kept.pop().close()
            with pytest.raises(Conflict, match=r"ring_bytes: \d+ held by the clients of key shop"):
                b.publisher("audit.d", history_bytes=128 << 20)
            b.publisher("audit.e").close()
            with a.consumer("orders.eu", "one"), pytest.raises(Conflict, match="consumers: 1 held"):
                b.consumer("orders.eu", "one")
            with b.consumer("orders.eu", "one"):
                pass
        assert gateway.counts["over_quota"] == 3
        with remote(gateway.url, "c", token=SECRET) as c:
            publishers = [c.publisher(f"audit.{i}") for i in range(3)]
            assert len(publishers) == 3, "sessions that ended hold nothing"
    finally:
        gateway.stop()


def test_refusals_of_strangers_are_told_once_a_second_and_all_counted() -> None:
    now, told = [0], list[Any]()
    denials = Denials(told.append, lambda: now[0])
    for _ in range(1000):
        denials.refused("10.0.0.7")
    assert [each.unreported for each in told] == [0]
    now[0] = 1_000_000_000
    denials.refused("evil\n2026-01-01 gateway: all is well\x1b[31m")
    assert told[1].unreported == 999
    assert told[1].client.isprintable()


def test_a_defect_in_a_task_ends_the_session_and_the_client_knows(
    node: EmbeddedLink, gateway: Gateway, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_given: Any) -> Any:
        raise RuntimeError("nobody foresaw this")

    publisher = shop.publisher("audit.a")
    monkeypatch.setattr(RemotePublication, "_attempt", broken)
    publisher.publish(b"x", flush=True)

    def publish_on() -> None:
        while True:
            publisher.publish(b"x")

    with pytest.raises(TidecastError, match="internal error in the gateway: RuntimeError"):
        publish_on()
    monkeypatch.undo()
    monkeypatch.setattr(rights, "shown", broken)
    with pytest.raises(TidecastError, match="internal error in the gateway: RuntimeError"):
        shop.link.administer("list", {})
    assert shop.health().status == "connected", "one request ends nothing else"
    assert shop.health().unsent > 0, "what was published and goes nowhere is counted"
    monkeypatch.setattr(publications, "CLOSE_TIMEOUT_S", 0.01)  # of what goes nowhere
    monkeypatch.setattr(RemoteConsumer, "_forward", broken)
    shop.consumer("orders.eu", "broken")
    until_event(shop, GatewayLost)
    assert gateway.counts["faults"] >= 1


def test_a_revoked_client_that_does_not_read_holds_nobody_up(
    node: EmbeddedLink, eventually: Eventually
) -> None:
    found = {KEY.sha256: Access(KEY.id, "shop", tuple(KEY.scopes))}
    gateway = make_gateway(node, find_key=found.get)
    monkey = pytest.MonkeyPatch()
    try:
        with remote(gateway.url, "deaf", token=SECRET), remote(gateway.url, "b", token=SECRET) as b:
            assert b.health().healthy

            async def never(*_given: Any) -> None:
                await asyncio.Event().wait()

            monkey.setattr(RemoteSession, "send", never)
            found.clear()
            eventually(lambda: not gateway.stats()["sessions"], "the end of both sessions")
            assert gateway.counts["keys_ended"] == 2
    finally:
        monkey.undo()
        gateway.stop()


# --- TLS ---------------------------------------------------------------------------------------
def make_certificate(directory: Path, name: str) -> tuple[Path, Path]:
    made, key = directory / f"{name}.pem", directory / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(key), "-out", str(made)],
        check=True, capture_output=True,
    )  # fmt: skip
    return made, key


def test_a_gateway_speaks_tls_and_loads_its_certificate_again(
    node: EmbeddedLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, key = make_certificate(tmp_path, "first")
    settings = GatewaySettings("0.0.0.0:0", made, key)
    gateway = open_gateway(node.node, tmp_path, settings)
    try:
        assert gateway.url.startswith("tidecast+tls://")
        url = f"tidecast+tls://127.0.0.1:{gateway.port}"
        with pytest.raises(EngineNotRunning, match=r"not valid here \(self.signed.*SSL_CERT_FILE"):
            remote(url, token=SECRET)
        monkeypatch.setenv("SSL_CERT_FILE", str(made))
        with remote(url, token=SECRET) as client:
            assert client.health().healthy
        with pytest.raises(EngineNotRunning, match=r"use tidecast\+tls://127.* if it speaks TLS"):
            remote(f"tidecast://127.0.0.1:{gateway.port}", token=SECRET)
    finally:
        gateway.stop()
    certificate = Certificate("gateway", made, key)
    assert not certificate.reload()
    second, second_key = make_certificate(tmp_path, "second")
    key.write_bytes(b"torn")
    with pytest.raises(ConfigError, match="belong together"):
        certificate.reload()
    made.write_bytes(second.read_bytes())
    key.write_bytes(second_key.read_bytes())
    assert certificate.reload()
    assert not certificate.reload()
    with pytest.raises(ConfigError, match="give both, or neither"):
        open_gateway(node.node, tmp_path, GatewaySettings("127.0.0.1:0", made))


def test_a_gateway_without_tls_is_named_as_such(node: EmbeddedLink, tmp_path: Path) -> None:
    gateway = open_gateway(node.node, tmp_path, GatewaySettings("127.0.0.1:0"))
    try:
        url = f"tidecast+tls://127.0.0.1:{gateway.port}"
        with pytest.raises(EngineNotRunning, match=r"does not speak TLS .*: use tidecast://127"):
            remote(url, token=SECRET)
    finally:
        gateway.stop()


# --- patterns, files, the command --------------------------------------------------------------


def _dotted(tokens: str, length_max: int) -> list[str]:
    lengths = range(1, length_max + 1)
    return [".".join(each) for n in lengths for each in itertools.product(tokens, repeat=n)]


NAMES = _dotted("ab", 4)
PATTERNS = [each + tail for each in _dotted("ab*", 3) for tail in ("", ".>")] + [">"]


def test_what_is_covered_is_matched() -> None:
    """A pattern that covers another matches every topic of it; a name is covered if matched."""
    matched = {each: {name for name in NAMES if matches(each, name)} for each in PATTERNS}
    for wide in PATTERNS:
        assert {name for name in NAMES if covers(wide, name)} == matched[wide], wide
        for narrow in PATTERNS:
            if covers(wide, narrow):
                assert matched[narrow] <= matched[wide], (wide, narrow)


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


@pytest.mark.parametrize(
    ("allowed", "said"),
    [
        ("publish:or ders..x", "pattern 'or ders..x'"),
        ("publish:", "pattern ''"),
        ("publish:a.>.b", "pattern 'a.>.b'"),
        ("fly:orders.*", "right 'fly': allowed publish, subscribe, manage, read_payloads"),
        ("publish", "no colon"),
    ],
)
def test_the_command_names_the_part_that_is_wrong(allowed: str, said: str) -> None:
    import click

    from tidecast.cli.key import new

    with pytest.raises(click.UsageError) as refused:
        new.main(["shop", "--allow", allowed], standalone_mode=False)
    assert said in refused.value.message


def test_a_declared_key_has_a_valid_pattern() -> None:
    _, made = new_key("x", [Scope(pattern="or ders..x", rights=["publish"])])
    with pytest.raises(ConfigError, match=r"keys\[0\].*pattern"):
        topology_from({"keys": [msgspec.to_builtins(made)]})


# --- local clients -----------------------------------------------------------------------------
def test_local_clients_show_keys_where_the_topology_says_so(short_dir: Path) -> None:
    _, admin_key = admin = new_key("admin", [Scope(pattern=">", rights=["manage"])])
    settings = {
        "node": {"local_keys": True},
        "transports": [{"name": "ipc", "kind": "ipc"}],
        "topics": TOPICS,
        "keys": [msgspec.to_builtins(KEY), msgspec.to_builtins(admin_key)],
    }
    engine = Engine(short_dir, topology_from(settings))
    engine.start()
    try:
        for token in (None, "wrong"):
            with pytest.raises(AuthError, match="needs a key"):
                tidecast.sync.connect(f"tidecast://{short_dir}", token=token)
        with tidecast.sync.connect(f"tidecast://{short_dir}", token=SECRET, name="near") as client:
            client.publish("orders.eu", b"1")
            with pytest.raises(AuthError, match="key shop lacks the right publish on secret"):
                client.publish("secret", b"1")
            with pytest.raises(AuthError, match="manage on >"):
                client.stats()
            with pytest.raises(AuthError, match=r"right manage on orders\.us"):
                client.consumer("orders.us", "z")
            with pytest.raises(AuthError, match="right read_payloads on secret"):
                client.read("secret")
            assert client.link.administer("list", {}) == []
        with tidecast.sync.connect(f"tidecast://{short_dir}", token=admin[0]) as client:
            (row,) = client.stats()["gateway"]
            assert (row["name"], row["refused"], row["denied"]) == ("socket", 2, 4)
            (row,) = client.stats()["key"]
            assert (row["name"], row["denied"]) == ("shop", 4)
            client.link.administer("create", {"pattern": "secret", "name": "hidden"})
            client.link.administer("create", {"pattern": "orders.us", "name": "seen"})
        with tidecast.sync.connect(f"tidecast://{short_dir}", token=SECRET, name="near") as client:
            (found,) = client.link.administer("list", {})
            assert found["name"] == "seen", "lists show only what the key covers"
            with client.consumer("orders.us", "seen"):
                pass  # it is there: joining takes the right to subscribe alone
        command = ["sub", "secret", "--data-dir", str(short_dir), "--token", SECRET]
        shown = CliRunner().invoke(main, command)
        assert "lacks the right subscribe on secret" in shown.output + str(shown.exception)
        assert "is new" not in shown.output
    finally:
        engine.stop()
