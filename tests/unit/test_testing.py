"""`tidecast.testing` as users have it: by name, in memory, and as fixtures of pytest."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from tests.project import ROOT
from tests.test_doc_examples import blocks

import tidecast.sync
import tidecast.testing
from tidecast.api.start import Earliest
from tidecast.client.blocking import Connection
from tidecast.config.topology import TopicConfig
from tidecast.errors import ConfigError, Timeout
from tidecast.testing import Network

PAGES = ("docs/TESTING.md", "docs/TUTORIAL.md", "docs/COOKBOOK.md")
"""Pages with tests as examples."""
PLUGIN = "tidecast.testing.plugin"


def fail_twice(client: Connection) -> None:
    """A record that is refused twice, after ten seconds each, and acked."""
    client.publish("orders", b"1", key="k", ack="durable")
    with client.consumer("orders", "billing") as consumer:
        for attempt in (1, 2, 3):
            message = consumer.next(timeout=60.0)
            assert message.attempts == attempt
            if attempt < 3:
                message.nak(10.0)
            else:
                message.ack()


def test_a_durable_consumer_that_fails_is_tested_within_a_second() -> None:
    with tidecast.testing.connect("warm", durable=["orders"], real_time=False) as client:
        fail_twice(client)
    took_s = []
    for n in range(5):
        began = time.process_time()
        with tidecast.testing.connect(f"n{n}", durable=["orders"], real_time=False) as client:
            fail_twice(client)
        took_s.append(time.process_time() - began)
    assert min(took_s) < 1.0, took_s  # 0.1; the CPU of a busy machine computes at a third


def test_timeouts_of_clients_are_virtual() -> None:
    began = time.process_time()
    with tidecast.testing.connect(durable=["orders"], real_time=False) as client:
        with client.subscribe("t") as subscription, pytest.raises(Timeout):
            subscription.next(timeout=60.0)
        with client.consumer("orders", "billing") as consumer:
            assert not len(consumer.fetch(10, max_wait=60.0))
        assert not list(client.events(timeout=60.0))
    assert time.process_time() - began < 30.0


def test_advance_lets_real_time_pass_at_once() -> None:
    with Network(real_time=True) as network:
        client = network.node("a", durable=["orders"]).connect()
        client.publish("orders", b"1", ack="durable")
        consumer = client.consumer("orders", "billing", ack_wait=60.0)
        assert consumer.next(timeout=5.0).attempts == 1
        before_ns = network.clock()
        network.advance(61.0)
        assert 61e9 <= network.clock() - before_ns < 90e9
        assert consumer.next(timeout=5.0).attempts == 2


def test_advance_in_virtual_time_is_run() -> None:
    with Network() as network:
        network.node("a")
        before_ns = network.clock()
        network.advance(2.5)
        assert 2.5e9 <= network.clock() - before_ns < 2.6e9


def test_connections_that_name_a_node_share_it() -> None:
    with (
        tidecast.testing.connect("shared", durable=["orders"], node="engine") as one,
        tidecast.sync.connect("memory://shared/engine") as two,
        tidecast.sync.connect("memory://shared") as other,
    ):
        assert one.link.node_id == two.link.node_id != other.link.node_id
        one.publish("orders", b"1", ack="durable")
        with two.consumer("orders", "billing") as consumer:
            assert consumer.next(timeout=5.0).data == b"1"
        with pytest.raises(ConfigError, match="node engine of network shared runs"):
            tidecast.testing.connect("shared", node="engine", topics=["late"])
        with pytest.raises(ConfigError, match="drop: network shared has its settings"):
            tidecast.testing.connect("shared", drop=0.5)


def test_asyncio_and_settings_of_topics() -> None:
    async def main() -> list[str]:
        topic = TopicConfig(name="orders", mode="durable", queues=3)
        async with tidecast.testing.connect_async("aio", topics=[topic]) as client:
            await client.publish("orders", b"1", ack="durable")
            async with client.consumer("orders", "billing", start=Earliest()) as consumer:
                assert (await consumer.next(timeout=5.0)).data == b"1"
                return [str(cursor["queue"]) for cursor in (await consumer.info())["cursors"]]

    assert asyncio.run(main()) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("drop=much", "drop: 'much'"),
        ("drop=2", "drop: 2.0: allowed"),
        ("real_time=maybe", "real_time: 'maybe': allowed are true, false"),
        ("seed=1.5", "seed: '1.5'"),
        ("drp=0.1", "drp: allowed are seed, drop"),
    ],
)
def test_urls_that_are_wrong_name_the_field(query: str, text: str) -> None:
    with pytest.raises(ConfigError) as problem:
        tidecast.sync.connect(f"memory://wrong?{query}")
    assert text in str(problem.value)


def test_a_network_is_made_once_by_its_name() -> None:
    with Network(name="mine") as network:
        with pytest.raises(ConfigError, match="has a network of that name"):
            Network(name="mine")
        assert network.node("a").url == "memory://mine/a"
    Network(name="mine").close()


# --- the plugin -----------------------------------------------------------------------------------


def run_pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:tidecast"),
            *("-p", PLUGIN, "--rootdir", str(directory), str(directory), *arguments),
        ],
        capture_output=True,
        text=True,
        cwd=directory,
        timeout=300,
        check=False,
    )


def test_a_network_gives_back_what_its_nodes_had_open() -> None:
    """Logs of nodes that live, that were killed and that were started again."""
    open_now = lambda: {each.name for each in Path("/proc/self/fd").iterdir()}  # noqa: E731
    before = open_now()
    with Network() as network:
        nodes = [network.node(durable=["orders"]) for _ in range(3)]
        with nodes[0].connect() as client, client.publisher("orders") as publisher:
            publisher.publish(b"one")
        assert len(open_now()) > len(before)
        network.kill(nodes[1])
        network.restart(nodes[2])
    assert open_now() == before


def test_the_examples_of_the_pages_pass_under_pytest(tmp_path: Path) -> None:
    codes = []
    for page in PAGES:
        found = [c for _, c in blocks((ROOT / page).read_text("utf-8")) if "def test_" in c]
        assert found, page
        codes += found
    for n, code in enumerate(codes):
        (tmp_path / f"test_block_{n}.py").write_text(code, "utf-8")
    done = run_pytest(tmp_path, "--strict-markers")
    assert f"{len(codes)} passed" in done.stdout, done.stdout + done.stderr


def test_markers_add_up_and_each_test_has_its_network(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "pytestmark = pytest.mark.tidecast(seed=3, durable=['a'], drop=0.5)\n"
        "seen = []\n"
        "@pytest.mark.tidecast(drop=0.25, topics=['b'])\n"
        "def test_one(tidecast_client, tidecast_node, tidecast_network):\n"
        "    assert (tidecast_network.seed, tidecast_network.switch.drop) == (3, 0.25)\n"
        "    assert [t.name for t in tidecast_node.topology.topics] == ['b', 'a']\n"
        "    assert tidecast_client.link.node_id == tidecast_node.id\n"
        "    seen.append(tidecast_network)\n"
        "def test_two(tidecast_network):\n"
        "    assert seen[0] is not tidecast_network and not seen[0].nodes\n"
        "@pytest.mark.tidecast('a')\n"
        "def test_wrong(tidecast_network): pass\n",
        "utf-8",
    )
    done = run_pytest(tmp_path)
    assert "2 passed, 1 error" in done.stdout, done.stdout
    assert "settings have names: tidecast(durable=[...])" in done.stdout


def test_the_plugin_costs_nothing_when_it_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_it():\n"
        "    names = [n for n in sys.modules if n.split('.')[0] in ('numba', 'numpy', 'msgspec')]\n"
        "    assert 'tidecast.testing.plugin' in sys.modules and names == []\n",
        "utf-8",
    )
    done = run_pytest(tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_pytest_finds_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"tidecast": PLUGIN}
