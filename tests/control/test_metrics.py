"""`/metrics`: the text format read strictly, names as Prometheus wants them, and kept."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.project import ROOT
from tidecast.layout.counters import Counter
from tidecast_control.live.channels import Facts
from tidecast_control.system.metrics import GAUGES, text

MANUAL = ROOT / "docs" / "OPERATING.md"
GOLDEN = ROOT / "tests" / "golden" / "metrics.txt"
DASHBOARD = ROOT / "docker" / "grafana" / "tidecast.json"
LINE = re.compile(r'[a-z_][a-z0-9_]*(\{([a-z_]+="(\\.|[^"\\\n])*",?)+\})? [-+0-9.eEInfNa]+')
PROMTOOL = shutil.which("promtool")
UNITS = ("milliseconds", "minutes", "kilobytes", "megabytes", "percent")


def _sample() -> dict[str, Any]:
    row = {c.name.lower(): 7 for c in Counter}
    about = {"name": 'a "name"\\\n', "detail": "", "session": 1, "peer": 0}
    queue = {
        "name": "orders:0", "topic": "orders", "number": 0, "state": "open", "owner_epoch": 0,
        "earliest": 0, "latest": 9, "durable": 9, "bytes": 100, "segments": 1, "appended": 9,
        "appended_bytes": 90, "settled": 4, "evicted": 0, "spilled": 0, "fetched_bytes": 0,
        "consumed_bytes": 0, "cache_bytes": 10, "cache_max": 100, "cache_fill": 0.1,
        "subscriptions": 1, "lag_messages": 5, "lag_s": 1.5, "cursor": 4, "pressure": "",
        "append_failures": 2, "sync_failures": 1,
    }  # fmt: skip
    subscription = {
        "name": "billing",
        "topic": "orders",
        "state": "idle",
        "members": 0,
        "lag_messages": 5,
        "lag_s": 1.5,
        "outstanding": 0,
        "pressure": "",
        "cursors": {},
        "dead": 3,
        "delivered": 4,
        "dead_open": 2,
    }
    publication = {
        "publication_id": 1,
        "topic": "orders",
        "session": 1,
        "channel": "ordinary",
        "head": 5,
        "transport": "udp",
        "slots": 64,
        "packet_bytes": 1400,
        "closing": False,
        "readers": [],
    }
    return {
        "mono_ns": 1,
        "host": {
            "started_ns": 5 * 10**9,
            "disk_free_bytes": 10,
            "disk_bytes": 20,
            "shm_free_bytes": 3,
            "shm_bytes": 4,
        },
        "counters": {
            "sender": [about | row],
            "publication": [about | row],
            "gateway": [about | {"name": "gateway", "sessions": 2}],
            "kafka": [about | {"name": "kafka", "open": 3, "bytes_in": 50}],
            "kafka_api": [about | {"name": "Fetch", "requests": 9, "errors": 1}],
            "adapter": [about | {"name": "feed", "queues": 2, "records": 7, "lag": 4}],
            "key": [about | {"name": "shop", "denied": 3}, about | {"name": "(others)"}],
            "node": [about | {"name": "n1", "peers_silent": 1}],
            "transport": [about | {"name": "lan", "path_mtu": 1500, "sends_too_long": 2}],
        },
        "publications": [publication],
        "images": [],
        "receivers": [],
        "subscriptions": {},
        "clients": 0,
        "queues": [queue],
        "durable_subscriptions": [subscription],
    }


def _text() -> str:
    facts = Facts(nodes={"n1": {"state": "up", "drift": False}}, topics_total=3)
    return text({"n1": _sample()}, facts, 2).decode()


def test_the_text_is_read_by_a_strict_parser() -> None:
    shown = _text()
    assert shown.endswith("\n")
    typed: set[str] = set()
    for line in shown.splitlines():
        if line.startswith("# TYPE "):
            name = line.split()[2]
            assert name not in typed, f"{name} is declared twice"
            typed.add(name)
        elif not line.startswith("# HELP "):
            assert LINE.fullmatch(line), line
    families = {f.name: f for f in text_string_to_metric_families(shown)}
    assert families["tidecast_queue_lag_messages"].samples[0].labels == {
        "queue": "orders:0",
        "node": "n1",
    }
    [sample] = [
        s for s in families["tidecast_packets_sent"].samples if s.labels["kind"] == "sender"
    ]
    assert (sample.labels["name"], sample.value) == ('a "name"\\\n', 7)
    denied = {s.labels["name"]: s.value for s in families["tidecast_key_denied"].samples}
    assert denied == {"shop": 3, "(others)": 0}


def test_names_are_as_prometheus_wants_them() -> None:
    """`promtool check metrics` rejects other names."""
    for family in text_string_to_metric_families(_text()):
        for sample in family.samples:
            counter = sample.name.endswith("_total")
            assert counter == (family.type == "counter"), sample.name
        assert family.documentation, family.name
        assert family.documentation.endswith("."), family.documentation
        assert not any(unit in family.name for unit in UNITS), family.name
        assert family.name.startswith("tidecast_")
        assert not re.search(r"_(counter|gauge|count|sum|bucket|info)$", family.name), family.name


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not here: it comes with Prometheus")
@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (("check", "metrics"), _text),
        (("check", "config", "docker/prometheus.yaml"), str),
    ],
    ids=["metrics", "config"],
)
def test_promtool_finds_no_fault(arguments: tuple[str, ...], given: Callable[[], str]) -> None:
    done = subprocess.run(
        [str(PROMTOOL), *arguments],
        input=given(),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_names_stay() -> None:
    """A name that goes breaks somebody's dashboard: take one out of the file on purpose only."""
    names = {f.name for f in text_string_to_metric_families(_text())}
    assert set(GOLDEN.read_text().split()) <= names
    assert {g.upper() for g in GAUGES} <= {c.name for c in Counter}


def test_the_manual_names_what_there_is() -> None:
    families = list(text_string_to_metric_families(_text()))
    known = {s.name for f in families for s in f.samples} | {f.name for f in families}
    section = MANUAL.read_text().partition("## What to watch")[2]
    named = re.findall(r"`(tidecast_[a-z_]+)`", section)
    assert len(named) >= 8
    assert set(named) <= known


def test_space_disk_and_dead_letters_are_metrics() -> None:
    shown = _text()
    for line in (
        'tidecast_node_start_time_seconds{node="n1"} 5.0',
        'tidecast_node_disk_free_bytes{node="n1"} 10.0',
        'tidecast_node_shm_free_bytes{node="n1"} 3.0',
        'tidecast_queue_append_failures_total{node="n1",queue="orders:0"} 2.0',
        'tidecast_subscription_dead_letters{name="billing"} 2.0',
        'tidecast_subscription_given_up_total{name="billing"} 3.0',
    ):
        assert line in shown.splitlines(), line


def test_gateways_kafka_endpoints_and_adapters_are_metrics() -> None:
    shown = _text()
    for line in (
        'tidecast_gateway_sessions{name="gateway",node="n1"} 2.0',
        'tidecast_kafka_open{name="kafka",node="n1"} 3.0',
        'tidecast_kafka_bytes_in_total{name="kafka",node="n1"} 50.0',
        'tidecast_kafka_throttled_total{name="kafka",node="n1"} 0.0',
        'tidecast_kafka_api_requests_total{name="Fetch",node="n1"} 9.0',
        'tidecast_kafka_api_errors_total{name="Fetch",node="n1"} 1.0',
        'tidecast_adapter_queues{name="feed",node="n1"} 2.0',
        'tidecast_adapter_waiting{name="feed",node="n1"} 0.0',
        'tidecast_adapter_records_total{name="feed",node="n1"} 7.0',
        'tidecast_adapter_lag{name="feed",node="n1"} 4.0',
    ):
        assert line in shown.splitlines()


def test_the_dashboard_asks_for_what_there_is() -> None:
    known = {s.name for f in text_string_to_metric_families(_text()) for s in f.samples}
    grafana = json.loads(DASHBOARD.read_text())
    asked = set(re.findall(r"tidecast_[a-z_]+", json.dumps(grafana)))
    assert asked
    assert asked <= known


def test_what_the_dashboard_draws_is_there_before_it_happens() -> None:
    """A series that begins with its first loss has no rise that a rate could show."""
    quiet = _sample()
    about = {"name": "orders", "detail": "", "session": 1, "peer": 0}
    quiet["counters"] = {kind: [about] for kind in ("sender", "receiver", "publication", "image")}
    shown = text({"n1": quiet}, Facts(), 0).decode()
    asked = re.findall(r"tidecast_[a-z_]+_total", DASHBOARD.read_text())
    assert asked
    for name in set(asked):
        assert re.search(rf"^{name}{{.*}} 0\.0$", shown, re.MULTILINE), name
