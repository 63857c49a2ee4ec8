"""Engines and the service: topology, rates on the wire, both sides dying, commands, live data."""

from __future__ import annotations

import functools
import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psycopg
import pytest
from websockets.exceptions import ConnectionClosed

from tests.conftest import Eventually
from tests.support.control import Running, running
from tests.support.fake_link import FakeLink
from tests.support.lab import multicast, topology
from tests.support.patience import Patience
from tidecast.config.topology import load_topology, topology_from
from tidecast.control_link.leases import LinkLeases
from tidecast.control_link.link import ControlLink, load_state, websocket_url
from tidecast.engine.process import Engine, make_node
from tidecast.errors import ConfigError
from tidecast.protocol.rate_limit import BURST_PACKETS_MIN
from tidecast.queues.leases.store import Listing, ListLeases
from tidecast.telemetry.views import connect_inside
from tidecast_control import server
from tidecast_control.api import crud
from tidecast_control.apply import routes as apply_routes
from tidecast_control.link.hub import Hub
from tidecast_control.settings import Settings

RATE_BYTES = 200_000


@pytest.fixture
def control(settings: Settings, template: Any) -> Iterator[Running]:
    """A service that listens."""
    with running(settings, template.login) as made:
        yield made


@pytest.fixture
def engine(control: Running, short_dir: Path) -> Iterator[Engine]:
    """An engine that has registered."""
    made = _engine(control, short_dir)
    with_link: ControlLink = made.links[0]  # type: ignore[attr-defined]
    assert with_link.connected.wait(20)
    yield made
    made.stop()


def _engine(control: Running, directory: Path, token: str | None = None, **node: Any) -> Engine:
    path = directory / "topology.yaml"
    if not path.exists():
        path.write_text(json.dumps(topology(multicast(), **node)))
    links: list[ControlLink] = []
    leases = LinkLeases()

    def link(node: Any, store: Any) -> ControlLink:
        enrol = token or control.enrol()
        made = ControlLink(node, store, control.url, token=enrol, seed=1, leases=leases)
        links.append(made)
        return made

    made = Engine(
        directory,
        load_topology(path),
        topology_file=path,
        companions=(link,),
        node_factory=functools.partial(make_node, lease_store=leases),
    )
    made.start()
    made.links = links  # type: ignore[attr-defined]
    return made


def _node(engine: Engine) -> Any:
    assert engine.node is not None
    return engine.node


def _topic(engine: Engine, name: str) -> Any:
    return next((t for t in _node(engine).topics() if t.name == name), None)


def _put(control: Running, path: str, spec: dict[str, Any]) -> Any:
    answer = control.api.put(f"/{path}", json={"spec": spec})
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


def _settled(control: Running, path: str) -> bool:
    status = control.api.get(f"/{path}").json()["status"]
    return not status["drift"] and status["observed_generation"] > 0


def test_an_engine_registers_and_applies_what_is_wanted(
    control: Running, engine: Engine, eventually: Eventually
) -> None:
    name = _node(engine).name
    listed = control.api.get(f"/nodes/{name}").json()
    assert listed["status"]["state"] == "up"
    _put(control, "topics/md.eu", {"linger_us": 99})
    eventually(lambda: _settled(control, "topics/md.eu"), "the topic on the engine")
    assert _topic(engine, "md.eu").linger_us == 99
    control.api.patch("/topics/md.eu", json={"spec": {"history_bytes": 1 << 20}})
    eventually(
        lambda: getattr(_topic(engine, "md.eu"), "history_bytes", 0) == 1 << 20,
        "the topic recreated",  # for a moment there is none
    )
    control.api.delete("/topics/md.eu")
    eventually(lambda: _topic(engine, "md.eu") is None, "the topic's end")


def test_a_write_of_a_topic_answers_when_the_engine_has_applied_it(
    control: Running, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publisher that opens the topic then finds it with its settings, and keeps it."""
    for module in (crud, apply_routes):  # an answer waits a second: beside load that is too short
        monkeypatch.setattr(module, "APPLIED_WITHIN_S", 60.0)
    client = connect_inside(_node(engine), "at-once")
    for n in range(10):
        name = f"at.once{n}"
        made = _put(control, f"topics/{name}", {"history_bytes": 1 << 20})
        assert (made["status"]["observed_generation"], made["status"]["drift"]) == (1, False)
        publisher = client.publisher(name)
        assert _topic(engine, name).history_bytes == 1 << 20
        answer = control.api.patch(f"/topics/{name}", json={"spec": {"linger_us": 77}}).json()
        assert answer["status"]["observed_generation"] == 2
        assert _topic(engine, name).linger_us == 77
        client.pump()
        publisher.publish(b"still open")
        assert control.api.delete(f"/topics/{name}").json()["warnings"] == []
        assert _topic(engine, name) is None
        documents = {"documents": [{"kind": "topic", "metadata": {"name": name}}]}
        assert control.api.post("/apply", json=documents).json()["warnings"] == []
        assert _topic(engine, name) is not None
    client.close()


def test_the_saved_version_has_its_topics_beside_it_at_any_time(
    control: Running, engine: Engine, short_dir: Path, eventually: Eventually
) -> None:
    """An engine that is killed now starts from these two files."""

    def saved() -> tuple[int, set[str]]:
        version = load_state(short_dir).version
        return version, {topic.name for topic in load_topology(short_dir / "topology.yaml").topics}

    def applied() -> int:
        status = control.api.get(f"/nodes/{_node(engine).name}").json()["status"]
        return int(status["topology_version"])

    for n in range(3):
        _put(control, f"topics/kept{n}", {})
        version, names = saved()
        assert version < applied() or f"kept{n}" in names
    eventually(lambda: saved() == (applied(), saved()[1]), "the newest version")
    assert saved()[1] >= {"kept0", "kept1", "kept2"}
    control.api.delete("/topics/kept0")
    version, names = saved()
    assert version < applied() or "kept0" not in names


def test_a_write_names_the_engines_that_have_not_applied_it(control: Running) -> None:
    late = ["engine stuck has not applied this yet: it does so when it answers"]
    with FakeLink(control, "stuck"):
        made = _put(control, "topics/t", {})
        drift = [c["message"] for c in made["status"]["conditions"] if c["type"] == "Drift"]
        assert drift == ["generation 1 is not in effect on stuck (generation 0)"]
        documents = {"documents": [{"kind": "topic", "metadata": {"name": "u"}}]}
        assert control.api.post("/apply", json=documents).json()["warnings"] == late
        assert control.api.delete("/topics/t").json()["warnings"] == late


def test_an_error_of_the_engine_is_shown_and_heals(
    control: Running, engine: Engine, eventually: Eventually
) -> None:
    _node(engine).create_topic(topology_from({"topics": [{"name": "own", "id": 4711}]}).topics[0])
    _put(control, "topics/theirs", {"wire_id": 4711, "transport": "multicast"})

    def conditions() -> list[str]:
        status = control.api.get("/topics/theirs").json()["status"]
        return [c["message"] for c in status["conditions"] if c["type"] == "Error"]

    eventually(lambda: conditions(), "the error in the status")
    assert "4711" in conditions()[0]
    _put(control, "topics/theirs", {"wire_id": 4712, "transport": "multicast"})
    eventually(lambda: not conditions(), "the error gone")


def test_the_link_continues_while_a_topology_waits_for_a_compiler(
    control: Running, engine: Engine, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """The first durable topic waits for kernels, a log for its recovery: for minutes, perhaps."""
    node, link = _node(engine), engine.links[0]  # type: ignore[attr-defined]
    begun, compiled, create = threading.Event(), threading.Event(), node.create_topics

    def slow(wanted: Any) -> Any:
        if wanted:
            begun.set()
            assert compiled.wait(60)
        return create(wanted)

    monkeypatch.setattr(type(node), "create_topics", lambda self, wanted: slow(wanted))
    learned, clock = threading.Event(), type(node.wire_keys.service_clock)
    monkeypatch.setattr(clock, "learn", lambda self, *times: learned.set())
    answers: list[Any] = []
    put = threading.Thread(target=lambda: answers.append(_put(control, "topics/slow", {})))
    put.start()
    try:
        assert begun.wait(20)
        assert link.leases.handle(ListLeases(1)) == Listing(owners={})
        learned.clear()
        assert learned.wait(30), "the service's time is asked for every 5 s"
        status = control.api.get(f"/nodes/{node.name}").json()["status"]
        assert status["state"] == "up"
        counters = control.api.get(f"/nodes/{node.name}/counters")
        assert counters.status_code == 200, counters.text
        assert _topic(engine, "slow") is None
    finally:
        compiled.set()
        put.join(30)
    eventually(lambda: _settled(control, "topics/slow"), "the topic on the engine")
    assert _topic(engine, "slow") is not None


def test_a_topology_that_fails_is_reported_and_comes_again(
    control: Running, engine: Engine, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    node, failures = _node(engine), [KeyError("a defect")]
    create = type(node).create_topics

    def failing(self: Any, wanted: Any) -> Any:
        if wanted and failures:
            raise failures.pop()
        return create(self, wanted)

    monkeypatch.setattr(type(node), "create_topics", failing)
    _put(control, "topics/again", {})
    eventually(lambda: _settled(control, "topics/again"), "the topic on the engine")
    assert not failures
    assert _topic(engine, "again") is not None


def test_a_topology_behind_a_failed_one_does_not_stand_for_it(
    control: Running, engine: Engine, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    node, link = _node(engine), engine.links[0]  # type: ignore[attr-defined]
    begun, go, create = threading.Event(), threading.Event(), type(node).create_topics

    def failing(self: Any, wanted: Any) -> Any:
        if wanted and not begun.is_set():
            begun.set()
            assert go.wait(60)
            raise KeyError("a defect")
        return create(self, wanted)

    monkeypatch.setattr(type(node), "create_topics", failing)
    names = ("topics/again", "topics/behind")
    puts = [threading.Thread(target=_put, args=(control, name, {})) for name in names]
    try:
        puts[0].start()
        assert begun.wait(20)
        puts[1].start()
        eventually(lambda: link._work_queue._jobs, "a topology behind the one that fails")
    finally:
        go.set()
        for each in puts:
            if each.ident is not None:
                each.join(30)
    for name in ("again", "behind"):
        eventually(lambda name=name: _settled(control, f"topics/{name}"), f"topic {name}")
        assert _topic(engine, name) is not None


def test_an_engine_that_is_back_before_its_end_is_noted_stays_up(
    control: Running, engine: Engine, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """The end of the earlier connection waits for a thread, and comes to Postgres last."""
    link, path = engine.links[0], f"/nodes/{_node(engine).name}"  # type: ignore[attr-defined]
    begun, go, noted, gone = threading.Event(), threading.Event(), threading.Event(), Hub._gone

    def late(self: Hub, ended: Any) -> None:
        begun.set()
        assert go.wait(60)
        gone(self, ended)
        noted.set()

    monkeypatch.setattr(Hub, "_gone", late)
    before = link._socket
    before.close_socket()
    try:
        assert begun.wait(20)
        eventually(lambda: link._socket not in (before, None), "the next connection")
        eventually(link.connected.is_set, "its welcome")
    finally:
        go.set()
    assert noted.wait(30)
    assert control.api.get(path).json()["status"]["state"] == "up"
    _put(control, "topics/after", {})
    eventually(lambda: _settled(control, "topics/after"), "the topic on the engine")


def _sent_bytes(engine: Engine, topic: str) -> int:
    """Bytes of a topic's packets, as the sender counts them."""
    rows = _node(engine).stats()["publication"]
    return next(int(row["bytes_sent"]) for row in rows if row["name"] == topic)


def test_a_changed_rate_limit_holds_on_the_wire_within_a_second(
    control: Running, short_dir: Path, eventually: Eventually
) -> None:
    """Publisher on one engine, subscriber on another: what is measured crossed the wire."""
    (short_dir / "a").mkdir()
    (short_dir / "b").mkdir()
    wire = topology(multicast())
    for name in ("a", "b"):
        (short_dir / name / "topology.yaml").write_text(json.dumps(wire))
    first = _engine(control, short_dir / "a")
    second = _engine(control, short_dir / "b")
    spec = {"rate_bytes_per_s": RATE_BYTES * 5, "transport": "multicast", "history_bytes": 1 << 16}
    try:
        _put(control, "topics/metered", spec)
        for each in (first, second):
            eventually(lambda each=each: _topic(each, "metered"), "the topic on both", timeout_s=20)
        source = connect_inside(_node(first), "source")
        sink = connect_inside(_node(second), "sink")
        reader = sink.subscribe("metered", on_gap="skip")
        publisher = source.publisher("metered", on_full="block")
        stopping, received = threading.Event(), [0]

        def publish() -> None:
            while not stopping.is_set():
                publisher.publish_batch([bytes(1000)] * 10, timeout=0.5)

        def read() -> None:
            while not stopping.is_set():
                received[0] += sum(m.size for m in reader.poll(256) or ())
                stopping.wait(0.001)

        def passes(progress_s: float) -> None:
            """Let so much pass, as a task of a busy machine sees it."""
            patience = Patience(progress_s)
            while not patience.over():
                stopping.wait(0.005)

        def rate(progress_s: float) -> float:
            """Bytes a second of progress that arrive."""
            before = received[0]
            passes(progress_s)
            return (received[0] - before) / progress_s

        threads = [threading.Thread(target=t, daemon=True) for t in (publish, read)]
        for thread in threads:
            thread.start()
        eventually(lambda: received[0] > 0, "the first message", timeout_s=20)
        assert rate(0.5) > 2.5 * RATE_BYTES
        changed = control.api.put(
            "/rate-limits/slow",
            json={"spec": {"pattern": "metered", "priority": 1, "rate_bytes_per_s": RATE_BYTES}},
        )
        assert changed.status_code == 201
        control.api.patch("/topics/metered", json={"spec": {"rate_bytes_per_s": None}})
        passes(1.0)
        began_s, before = time.monotonic(), _sent_bytes(first, "metered")
        assert rate(0.7) > 0.5 * RATE_BYTES
        n_bytes = _sent_bytes(first, "metered") - before
        burst = BURST_PACKETS_MIN * _node(first).topology.transport("multicast").packet_bytes
        limit = RATE_BYTES * (time.monotonic() - began_s) + burst
        assert n_bytes <= limit, "a token bucket has no tolerance"
        effective = control.api.get("/topics/metered").json()["status"]["effective_rate"]
        assert effective["bytes_source"] == "rate_limit/slow"
        stopping.set()
        for thread in threads:
            thread.join(5)
        source.close()
        sink.close()
    finally:
        first.stop()
        second.stop()


def test_the_engine_runs_on_without_the_service_and_reconciles(
    settings: Settings, template: Any, short_dir: Path, eventually: Eventually
) -> None:
    with running(settings, template.login) as control:
        engine = _engine(control, short_dir)
        try:
            link = engine.links[0]  # type: ignore[attr-defined]
            assert link.connected.wait(20)
            _put(control, "topics/kept", {"linger_us": 5})
            _put(control, "topics/doomed", {})
            eventually(lambda: _settled(control, "topics/doomed"), "both topics")
            port = control.port
            shown = link._socket.logger.logger  # by websockets, with tracebacks and tokens
            assert not shown.isEnabledFor(logging.CRITICAL)
            control.stop()
            eventually(lambda: not link.connected.is_set(), "the link to break")
            client = connect_inside(_node(engine), "alone")
            with client.subscribe("kept") as messages:
                client.publish("kept", b"alone", flush=True)
                assert bytes(messages.next(timeout=5).data) == b"alone"
            client.close()
            again = settings.model_copy(update={"port": port})
            with running(again, template.login) as back:
                _put(back, "topics/kept", {"linger_us": 6})
                back.api.delete("/topics/doomed")
                eventually(lambda: link.connected.is_set(), "the link to come back", timeout_s=20)
                eventually(lambda: _topic(engine, "doomed") is None, "the deleted topic's end")
                eventually(lambda: _topic(engine, "kept").linger_us == 6, "the changed topic")
                eventually(lambda: load_state(short_dir).managed == ["kept"], "the saved state")
                assert load_state(short_dir).credential.startswith("tcn_")
        finally:
            engine.stop()
    saved = load_topology(short_dir / "topology.yaml")
    assert [t.name for t in saved.topics] == ["kept"]


def test_an_engine_without_a_right_token_is_refused(
    control: Running, short_dir: Path, eventually: Eventually
) -> None:
    engine = _engine(control, short_dir, token="tce_wrong")
    try:
        link = engine.links[0]  # type: ignore[attr-defined]
        eventually(lambda: "unknown" in link.problem, "the refusal")
        assert control.api.get("/nodes").json()["items"] == []
    finally:
        engine.stop()


def test_an_enrolment_token_is_used_up(
    control: Running, short_dir: Path, eventually: Eventually
) -> None:
    token = control.enrol()
    for name in ("a", "b"):
        (short_dir / name).mkdir()
    engine = _engine(control, short_dir / "a", token, name="first")
    try:
        assert engine.links[0].connected.wait(20)  # type: ignore[attr-defined]
        other = _engine(control, short_dir / "b", token, name="second")
        try:
            link = other.links[0]  # type: ignore[attr-defined]
            eventually(lambda: "unknown" in link.problem, "the refusal")
            assert not link.connected.is_set()
        finally:
            other.stop()
    finally:
        engine.stop()


def test_a_quarantined_node_is_refused_at_once(
    control: Running, engine: Engine, eventually: Eventually
) -> None:
    node = _node(engine)
    refused = next(iter(node.runtimes.values())).rx_state.quarantine
    before = int(refused.sum())
    control.api.put("/nodes/elsewhere", json={"spec": {"quarantined": True}})

    def newest() -> bool:
        status = control.api.get(f"/nodes/{node.name}").json()["status"]
        return bool(status["topology_version"] == status["wanted_version"])

    eventually(newest, "the newest topology on the engine")
    assert int(refused.sum()) == before, "nobody quarantines a node that was never seen"
    engine.links[0]._applier._quarantine([9])  # type: ignore[attr-defined]
    assert int(refused.sum()) != before
    assert node.topology.node.quarantined == [9]


def test_faults_are_injected_and_expire(
    control: Running, engine: Engine, eventually: Eventually
) -> None:
    control.api.patch("/transports/multicast", json={"spec": {"allow_faults": True}})
    _put(control, "faults/multicast", {"drop": 0.25, "seed": 7, "expires_s": 1.0})
    faults = _node(engine).get_faults
    eventually(lambda: faults()["multicast"].drop == 0.25, "the fault")
    eventually(lambda: faults()["multicast"].drop == 0.0, "its end")
    assert control.api.get("/faults/multicast").status_code == 404


def test_traffic_is_switched_on_and_off_and_seen_live(
    control: Running, engine: Engine, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidecast_control.live.feed.LINGER_S", 0.2)
    _put(control, "topics/example", {})
    eventually(lambda: _settled(control, "topics/example"), "the topic on the engine")
    with control.live("overview", "topic:example", "messages:example") as feed:
        assert feed.next("overview", "snapshot")["data"]["nodes_up"] == 1
        started = control.api.post("/traffic/example/start")
        assert started.status_code == 200, started.text
        rates = feed.until("topic:example", lambda data: data["topic"]["rates"]["packets_out"] > 5)
        assert rates["topic"]["publishers"] == 1
        tail = feed.next("messages:example", "delta")["data"]
        assert tail["messages"][0]["payload"]["encoding"] == "json"
        control.api.post("/traffic/example/stop")
        feed.until("topic:example", lambda data: data["topic"]["publishers"] == 0)
    eventually(lambda: not engine.links[0]._interval_ms, "telemetry off", timeout_s=20)  # type: ignore[attr-defined]


def test_the_live_feed_resumes_by_sequence(control: Running, engine: Engine) -> None:
    """A viewer that missed some frames gets their changes once, and no other frame again."""
    name = _node(engine).name

    def version(data: Any) -> int:
        return int(data.get("nodes", {}).get(name, {}).get("topology_version", 0))

    with control.live("nodes") as witness:
        with control.live("nodes") as feed:
            feed.next("nodes", "snapshot")
            seen = feed.next("nodes", "delta")
            before = feed._data["nodes"]
        _put(control, "topics/meanwhile", {})
        witness.until("nodes", lambda data: version(data) > version(before))
        witness.next("nodes", "delta")  # the frame that changed it is not the newest any more
        with control.live("nodes", after=seen["seq"]) as feed:
            feed._data["nodes"] = before
            again = feed.read()
            assert again["kind"] == "delta"
            assert int(again["seq"]) > int(seen["seq"])
            assert version(feed._data["nodes"]) >= version(witness._data["nodes"])
    for forgotten in ("1", str(10**18)):  # the second one is of a service whose clock is ahead
        with control.live("nodes", after=forgotten) as feed:
            assert feed.read()["kind"] == "gap"
            feed.next("nodes", "snapshot")
            feed.until("nodes", lambda data: name in data["nodes"])


def test_a_channel_that_the_viewer_does_not_have_begins_with_all_of_it(
    control: Running, engine: Engine
) -> None:
    """One seq for all of them began it with changes of data that the viewer never had."""
    name = _node(engine).name
    with control.live("nodes", "overview") as witness:
        seen = witness.next("overview", "snapshot")
        with control.live("nodes", "overview", after={"overview": seen["seq"]}) as feed:
            feed.next("nodes", "snapshot")
            feed.until("nodes", lambda data: name in data["nodes"])


def test_an_engine_that_does_not_answer_is_down(
    control: Running, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """A frozen engine keeps its socket: it stayed `up` for half a minute."""
    assert server.ENGINE_PING_S + server.ENGINE_PONG_S < 10
    monkeypatch.setattr(server, "ENGINE_PING_S", 0.1)
    monkeypatch.setattr(server, "ENGINE_PONG_S", 0.3)
    with FakeLink(control, "frozen") as link:

        def state() -> Any:
            return control.api.get("/nodes/frozen").json()["status"]["state"]

        assert state() == "up"
        link.socket.protocol.send_frame = lambda frame: None  # type: ignore[method-assign]
        eventually(lambda: state() == "down", "the end of it")


def test_a_sample_without_its_time_ends_no_link(control: Running, eventually: Eventually) -> None:
    with FakeLink(control, "odd") as link:
        link.send(type="telemetry", counters=3)
        link.send(type="telemetry", mono_ns="soon")
        link.send(type="applied", version=0, errors={}, restart_needed=[])
        assert link.socket.ping().wait(20)
        assert control.api.get("/nodes/odd").json()["status"]["state"] == "up"


def test_a_database_error_closes_the_feed_so_that_the_page_connects_again(
    control: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the sender alone: the tab stayed stale until it was closed."""
    monkeypatch.setattr("tidecast_control.live.socket.AUTH_S", 0.0)

    async def away(*_args: Any) -> Any:
        raise psycopg.OperationalError("the database does not answer")

    with control.live("nodes") as feed:
        feed.next("nodes", "snapshot")
        monkeypatch.setattr("tidecast_control.live.socket.actor_of", away)
        with pytest.raises(ConnectionClosed) as closed:
            feed.until("nodes", lambda _data: False)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1013


def test_browse_and_publish_by_way_of_an_engine(control: Running, engine: Engine) -> None:
    _put(control, "topics/t", {})
    client = connect_inside(_node(engine), "keeper")
    with client.subscribe("t") as messages:
        body = {"value": {"n": 12345678901234567890}, "key": "k", "headers": {"a": "b"}}
        for _ in range(2):
            sent = control.api.post(
                "/topics/t/messages", json=body, headers={"Idempotency-Key": "once"}
            )
            assert sent.status_code == 201, sent.text
        assert json.loads(bytes(messages.next(timeout=5).data)) == body["value"]
        assert not messages.poll(10)
        publisher = client.publisher("t")
        publisher.publish(b"\xff\x00", flush=True)
        found = control.api.get("/topics/t/messages?wait_ms=300").json()["messages"]
        assert [m["payload"]["encoding"] for m in found][-1] == "hex"
        assert found[-1]["payload"]["text"] == "ff00"
        assert "not UTF-8" in found[-1]["payload"]["decoders"]["text"]
    client.close()
    with control.as_viewer() as viewer:
        page = viewer.get("/topics/t/messages?wait_ms=100").json()
        assert page["withheld"]
        assert all(m["payload"]["encoding"] == "withheld" for m in page["messages"])
    two = {"text": "a", "hex": "00"}
    assert control.api.post("/topics/t/messages", json=two).status_code == 422
    assert control.api.post("/topics/none/messages", json={"text": ""}).status_code == 404
    reserved = {"text": "a", "headers": {"tidecast-for": "x"}}
    for how in ("", "?dry_run=true"):
        refused = control.api.post(f"/topics/t/messages{how}", json=reserved)
        assert refused.status_code == 422
        assert "the engine's own" in refused.text


def test_recorder_counters_and_metrics(control: Running, engine: Engine) -> None:
    name = _node(engine).name
    records = control.api.get(f"/nodes/{name}/recorder?limit=5").json()["records"]
    assert records
    counters = control.api.get(f"/nodes/{name}/counters").json()["counters"]
    assert "node" in counters
    text = httpx.get(control.url + "/metrics", timeout=30).text
    assert f'tidecast_node_up{{node="{name}"}} 1.0' in text
    assert "# TYPE tidecast_packets_sent_total counter" in text
    assert control.api.get("/nodes/nobody/recorder").json()["code"] == "not_found"


@pytest.mark.parametrize("url", ["ftp://x", "nonsense", "http://"])
def test_wrong_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="http://HOST:PORT"):
        websocket_url(url)


def test_urls() -> None:
    assert websocket_url("https://h:1/base/") == "wss://h:1/base/api/v1/engine"
