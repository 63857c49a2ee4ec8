"""`tidecast top`: the engine's counters, live."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from tidecast.cli.common import (
    all_rows,
    console,
    echo_json,
    engine_options,
    human_bytes,
    human_count,
    server_of,
)
from tidecast.cli.options.params import Duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidecast.buffers.counters import Row
    from tidecast.client.blocking import Connection
    from tidecast.client.links.socket_session import EngineControl

ROWS_SHOWN_MAX = 20
Snapshot = dict[str, Any]


@click.command()
@click.option(
    "--interval",
    "interval_s",
    type=Duration(low=0.1, high=3600),
    default=1.0,
    help="Between two views; rates are over this time.",
)
@click.option("--once", is_flag=True, help="One view (over one interval), then exit.")
@engine_options
def top(interval_s: float, once: bool, data_dir: Path, token: str | None, as_json: bool) -> None:
    """Watch rates, NAKs, retransmits, ring fill, the slowest receivers and loss by source.

    With --json one object a view: totals are counted since the engine started, fields that end in
    _per_s are rates. At --server it takes the right to manage every topic.
    """
    pause = threading.Event()
    with contextlib.suppress(KeyboardInterrupt), _source(data_dir, token) as source:
        before = snapshot(source.rows(), time.monotonic())
        if as_json:
            while not pause.wait(interval_s):
                before = _next(source.rows(), before)
                echo_json(view(before, source.receivers(), source.node))
                if once:
                    return
        _live(source, before, interval_s, once)


class _Source(Protocol):
    """Where the figures come from."""

    node: str

    def rows(self) -> list[Row]:
        """All rows of the counters file."""

    def receivers(self) -> list[dict[str, Any]]:
        """Receivers of this node's publications."""

    @property
    def connected(self) -> bool:
        """The engine is there."""


@contextlib.contextmanager
def _source(data_dir: Path, token: str | None) -> Iterator[_Source]:
    server = server_of()
    if server is None:
        from tidecast.cli.common import control

        with control(data_dir, token) as engine:
            yield _Local(engine)
        return
    from tidecast.sync import connect

    with connect(server, name="tidecast top", token=token) as client:
        yield _RemoteEngine(client)


class _Local:
    """The counters file of an engine on this machine; reading it costs the engine nothing."""

    def __init__(self, engine: EngineControl) -> None:
        from tidecast.buffers.counters import CountersFile

        self._engine, self.node = engine, engine.welcome.node_name
        self._file = CountersFile.open(Path(engine.welcome.counters_path))

    def rows(self) -> list[Row]:
        return self._file.rows()

    def receivers(self) -> list[dict[str, Any]]:
        from tidecast.errors import TidecastError

        with contextlib.suppress(TidecastError):
            return self._engine.overview().receivers
        return []

    @property
    def connected(self) -> bool:
        return self._engine.connected


class _RemoteEngine:
    """The counters of an engine behind a gateway, asked for at each view."""

    def __init__(self, client: Connection) -> None:
        self._client, self.node = client, client.link.node_name

    def _ask(self, action: str, **arguments: Any) -> Any:
        return self._client.link.administer(action, arguments)

    def rows(self) -> list[Row]:
        import numpy as np

        from tidecast.buffers.counters import Row

        return [
            Row(
                row["index"],
                row["kind"],
                row["session"],
                0,
                0,
                row["created_ns"],
                row["name"],
                row["detail"],
                np.array(row["values"], np.int64),
            )
            for row in all_rows(self._ask, "counters")
        ]

    def receivers(self) -> list[dict[str, Any]]:
        return all_rows(self._ask, "receivers")

    @property
    def connected(self) -> bool:
        return self._client.health().healthy


def _live(source: _Source, before: Snapshot, interval_s: float, once: bool) -> None:
    from rich.live import Live

    out, pause = console(), threading.Event()
    if once or not out.is_terminal:
        pause.wait(interval_s)
        out.print(render(view(_next(source.rows(), before), source.receivers(), source.node)))
        return
    with Live(console=out, screen=True, auto_refresh=False) as live:
        while not pause.wait(interval_s) and source.connected:
            before = _next(source.rows(), before)
            live.update(render(view(before, source.receivers(), source.node)), refresh=True)
    from tidecast.errors import ConnectionLost

    raise ConnectionLost("the engine stopped")


def snapshot(rows: list[Row], at_s: float) -> Snapshot:
    """All rows now. ``rates`` is filled by `_next`."""
    return {"at_s": at_s, "rates": {}, "rows": {(r.kind, r.index, r.created_ns): r for r in rows}}


def _next(rows: list[Row], before: Snapshot) -> Snapshot:
    now = snapshot(rows, time.monotonic())
    past_s = max(now["at_s"] - before["at_s"], 1e-9)
    for key, row in now["rows"].items():
        old = before["rows"].get(key)
        base = old.values if old is not None else 0
        now["rates"][key] = (row.values - base) / past_s
    return now


_PUBLICATION_RATES = {
    "packets_per_s": "PACKETS_SENT",
    "bytes_per_s": "BYTES_SENT",
    "resent_packets_per_s": "PACKETS_RESENT",
    "naks_received_per_s": "NAKS_RECEIVED",
    "send_errors_per_s": "SEND_ERRORS",
}
_PUBLICATION_TOTALS = (
    "PACKETS_SENT", "BYTES_SENT", "PACKETS_RESENT", "BYTES_RESENT", "NAKS_RECEIVED",
    "NAKS_TOO_LATE", "RATE_LIMITED", "FLOW_LIMITED", "RECEIVERS", "RECEIVER_TIMEOUTS", "RTT_NS",
    "HEAD", "SENT", "SLOWEST_CONSUMED", "SLOTS", "SEND_ERRORS", "COMPACTED", "BYTES_SAVED",
)  # fmt: skip
_IMAGE_RATES = {
    "packets_per_s": "PACKETS_RECEIVED",
    "bytes_per_s": "BYTES_RECEIVED",
    "naks_sent_per_s": "NAKS_SENT",
    "losses_per_s": "LOSSES",
}
_IMAGE_TOTALS = (
    "PACKETS_RECEIVED", "BYTES_RECEIVED", "NAKS_SENT", "LOSSES", "RECOVERED", "LOST_FOR_GOOD",
    "DUPLICATES", "OVERRUNS", "REPAIRS_UNNEEDED", "EVICTIONS", "HIGHEST", "CONTIGUOUS", "CONSUMED",
    "SLOTS", "COMPACTED", "BYTES_SAVED", "TABLE_MISSING",
)  # fmt: skip


def view(now: Snapshot, receivers: list[dict[str, Any]], node: str) -> dict[str, Any]:
    """The view, by kind: ``publications``, ``images``, ``sources``, ``agents`` and others."""
    from tidecast.layout.counters import GAUGES, Counter

    found: dict[str, Any] = {
        "node": node,
        "publications": [],
        "images": [],
        "agents": [],
        "gateway": [],
        "kafka": [],
        "kafka_api": [],
        "adapter": [],
        "key": [],
        "subscriptions": [],
        "receivers": receivers,
    }
    for key, row in now["rows"].items():
        rates = now["rates"].get(key)
        if row.kind == "publication":
            fill = _fill(row.values, Counter.HEAD, Counter.SLOWEST_CONSUMED, Counter.SLOTS)
            found["publications"].append(
                {"topic": row.name, "channel": row.detail, "session": row.session}
                | _rates(rates, _PUBLICATION_RATES)
                | _totals(row.values, _PUBLICATION_TOTALS)
                | {"fill": fill}
            )
        elif row.kind == "image":
            fill = _fill(row.values, Counter.HIGHEST, Counter.CONSUMED, Counter.SLOTS)
            found["images"].append(
                {"topic": row.name, "node": row.detail, "session": row.session}
                | _rates(rates, _IMAGE_RATES)
                | _totals(row.values, _IMAGE_TOTALS)
                | {"fill": fill}
            )
        elif row.kind == "gateway":
            found["gateway"].append(_gateway_row(row, rates))
        elif row.kind in ("kafka", "kafka_api", "adapter", "key"):
            found[row.kind].append(_named_row(row, rates))
        elif row.kind == "subscription":
            found["subscriptions"].append(_subscription(row, rates))
        elif row.kind != "queue":
            counts = {
                c.name.lower(): int(row.values[c]) for c in Counter if row.values[c] or c in GAUGES
            }
            found["agents"].append({"kind": row.kind, "name": row.name} | counts)
    found["sources"] = _sources(found["images"])
    found["slowest"] = _slowest(receivers)
    return found


def _gateway_row(row: Any, rates: Any) -> dict[str, Any]:
    from tidecast.layout.counters import GatewayCounter as C

    found = {"listens": row.detail} | {c.name.lower(): int(row.values[c]) for c in C}
    for c in (C.BYTES_IN, C.BYTES_OUT):
        found[f"{c.name.lower()}_per_s"] = 0.0 if rates is None else round(float(rates[c]), 3)
    return found


def _named_row(row: Any, rates: Any) -> dict[str, Any]:
    """A row of the Kafka endpoint, an API of it, an adapter or a key, by its counters' names."""
    from tidecast.layout.counters import COLUMNS_OF

    columns = COLUMNS_OF[row.kind]
    detail = "adapter" if row.kind == "adapter" else "listens"
    found = {"name": row.name} if row.kind == "key" else {"name": row.name, detail: row.detail}
    found |= {c.name.lower(): int(row.values[c]) for c in columns}
    for c in columns:
        if c.name in ("BYTES_IN", "BYTES_OUT", "RECORDS_IN", "REQUESTS", "RECORDS", "BYTES"):
            found[f"{c.name.lower()}_per_s"] = 0.0 if rates is None else round(float(rates[c]), 3)
    return found


def _subscription(row: Any, rates: Any) -> dict[str, Any]:
    from tidecast.layout.subscription_counters import SubscriptionCounter as S

    found: dict[str, Any] = {"topic": row.name, "subscription": row.detail}
    found |= {column.name.lower(): int(row.values[column]) for column in S}
    per_s = 0.0 if rates is None else float(rates[S.SETTLED])
    return found | {"settled_per_s": round(per_s, 3)}


def _rates(rates: Any, names: dict[str, str]) -> dict[str, float]:
    from tidecast.layout.counters import Counter

    if rates is None:
        return dict.fromkeys(names, 0.0)
    return {name: round(float(rates[Counter[counter]]), 3) for name, counter in names.items()}


def _totals(values: Any, names: tuple[str, ...]) -> dict[str, int]:
    from tidecast.layout.counters import Counter

    return {name.lower(): int(values[Counter[name]]) for name in names}


def _fill(values: Any, ahead: int, behind: int, slots: int) -> float:
    """Share of a ring between two positions, 0..1."""
    size = int(values[slots])
    if size <= 0:
        return 0.0
    return round(min(1.0, max(0.0, int(values[ahead] - values[behind]) / size)), 4)


def _sources(images: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Loss by the node it comes from, worst first."""
    by_node: dict[str, dict[str, Any]] = {}
    for image in images:
        one = by_node.setdefault(
            image["node"],
            {"node": image["node"], "packets": 0, "losses": 0, "recovered": 0, "lost_for_good": 0},
        )
        one["packets"] += image["packets_received"]
        for name in ("losses", "recovered", "lost_for_good"):
            one[name] += image[name]
    for one in by_node.values():
        one["loss_ratio"] = round(one["losses"] / max(1, one["packets"] + one["losses"]), 6)
    return sorted(by_node.values(), key=lambda one: -int(one["losses"]))


def _slowest(receivers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each publication the receiver that consumed least."""
    slowest: dict[Any, dict[str, Any]] = {}
    for each in receivers:
        key = (each.get("topic"), each.get("session"))
        if key not in slowest or each.get("consumed", 0) < slowest[key].get("consumed", 0):
            slowest[key] = each
    return list(slowest.values())


def render(shown: dict[str, Any]) -> RenderableType:
    """The view as tables."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(f"node {shown['node']}", style="bold")]
    parts.append(_publications(shown["publications"], shown["slowest"]))
    refused = [p["topic"] for p in shown["publications"] if p["send_errors_per_s"] > 0]
    if refused:
        named = ", ".join(refused[:ROWS_SHOWN_MAX])
        parts.append(
            Text(f"The network refuses packets of {named}: see `tidecast doctor`", style="red")
        )
    parts.append(_images(shown["images"]))
    parts.append(_losses(shown["sources"]))
    if shown["subscriptions"]:
        parts.append(_subscriptions(shown["subscriptions"]))
    parts.append(_agents(shown["agents"]))
    if shown["gateway"]:
        parts.append(_gateway(shown["gateway"]))
    if shown["kafka"]:
        parts += [_kafka(shown["kafka"]), _kafka_apis(shown["kafka_api"])]
    if shown["adapter"]:
        parts.append(_adapters(shown["adapter"]))
    if shown["key"]:
        parts.append(_keys(shown["key"]))
    return Group(*parts)


def _table(title: str, columns: list[str], rows: list[list[str]], words: int) -> RenderableType:
    """A table; the first ``words`` columns are text, the others numbers."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < words else "right")
    for row in rows[:ROWS_SHOWN_MAX]:
        table.add_row(*(escape(cell) for cell in row))
    if len(rows) > ROWS_SHOWN_MAX:
        table.add_row(f"and {len(rows) - ROWS_SHOWN_MAX} more")
    if not rows:
        table.add_row("none")
    return table


def _publications(found: list[dict[str, Any]], slowest: list[dict[str, Any]]) -> RenderableType:
    laggard = {(s.get("topic"), s.get("session")): s for s in slowest}
    rows = []
    for p in sorted(found, key=lambda p: -float(p["bytes_per_s"])):
        slow = laggard.get((p["topic"], p["session"]), {})
        behind = p["sent"] - p["slowest_consumed"]
        rows.append(
            [
                p["topic"],
                f"{p['session']:x}",
                str(slow.get("node", "")),
                human_count(p["packets_per_s"]),
                human_bytes(p["bytes_per_s"]),
                human_count(p["resent_packets_per_s"]),
                human_count(p["naks_received"]),
                f"{p['fill']:.0%}",
                str(p["receivers"]),
                human_count(behind),
            ]
        )
    columns = [
        "topic",
        "session",
        "slowest",
        "packets/s",
        "bytes/s",
        "resent/s",
        "NAKs",
        "fill",
        "receivers",
        "behind",
    ]
    return _table("Publications", columns, rows, 3)


def _images(found: list[dict[str, Any]]) -> RenderableType:
    rows = [
        [
            i["topic"],
            i["node"],
            f"{i['session']:x}",
            human_count(i["packets_per_s"]),
            human_bytes(i["bytes_per_s"]),
            human_count(i["naks_sent"]),
            human_count(i["losses"]),
            human_count(i["lost_for_good"]),
            f"{i['fill']:.0%}",
        ]
        for i in sorted(found, key=lambda i: -float(i["bytes_per_s"]))
    ]
    columns = [
        "topic",
        "from",
        "session",
        "packets/s",
        "bytes/s",
        "NAKs",
        "missing",
        "lost",
        "fill",
    ]
    return _table("Images (received publications)", columns, rows, 3)


def _losses(found: list[dict[str, Any]]) -> RenderableType:
    rows = [
        [
            s["node"],
            human_count(s["packets"]),
            human_count(s["losses"]),
            human_count(s["recovered"]),
            human_count(s["lost_for_good"]),
            f"{s['loss_ratio']:.3%}",
        ]
        for s in found
    ]
    columns = ["from", "packets", "missing", "recovered", "lost", "ratio"]
    return _table("Loss by source", columns, rows, 1)


def _gateway(found: list[dict[str, Any]]) -> RenderableType:
    columns = [
        "gateway",
        "sessions",
        "in/s",
        "out/s",
        "refused",
        "denied",
        "resumed",
        "expired",
        "gaps",
        "bad frames",
    ]
    counts = ("refused", "denied", "resumed", "expired", "gaps", "bad_frames")
    rows = [
        [
            g["listens"],
            str(g["sessions"]),
            human_bytes(g["bytes_in_per_s"]),
            human_bytes(g["bytes_out_per_s"]),
            *(human_count(g[name]) for name in counts),
        ]
        for g in found
    ]
    return _table("Remote clients", columns, rows, 1)


def _kafka(found: list[dict[str, Any]]) -> RenderableType:
    columns = [
        "listens",
        "open",
        "groups",
        "members",
        "records/s",
        "in/s",
        "out/s",
        "throttled",
        "refused",
        "denied",
        "silent",
        "bad requests",
    ]
    counts = ("throttled", "connections_refused", "denied", "connections_silent", "bad_requests")
    rows = [
        [
            k["listens"],
            str(k["open"]),
            str(k["groups"]),
            str(k["members"]),
            human_count(k["records_in_per_s"]),
            human_bytes(k["bytes_in_per_s"]),
            human_bytes(k["bytes_out_per_s"]),
            *(human_count(k[name]) for name in counts),
        ]
        for k in found
    ]
    return _table("Kafka clients", columns, rows, 1)


def _kafka_apis(found: list[dict[str, Any]]) -> RenderableType:
    rows = [
        [
            k["name"],
            human_count(k["requests"]),
            human_count(k["requests_per_s"]),
            human_count(k["errors"]),
            human_bytes(k["bytes_in_per_s"]),
            human_bytes(k["bytes_out_per_s"]),
        ]
        for k in sorted(found, key=lambda k: -int(k["requests"]))
    ]
    columns = ["request", "count", "per s", "errors", "in/s", "out/s"]
    return _table("Requests of Kafka clients", columns, rows, 1)


def _keys(found: list[dict[str, Any]]) -> RenderableType:
    rows = [
        [k["name"], human_count(k["denied"]), human_count(k["over_quota"])]
        for k in sorted(found, key=lambda k: -int(k["denied"] + k["over_quota"]))
    ]
    return _table("Refused requests by key", ["key", "denied", "over quota"], rows, 1)


def _adapters(found: list[dict[str, Any]]) -> RenderableType:
    rows = [
        [
            a["name"],
            a["adapter"],
            "waiting" if a["waiting"] else "open",
            str(a["queues"]),
            human_count(a["records_per_s"]),
            human_bytes(a["bytes_per_s"]),
            human_count(a["fetches"]),
            human_count(a["lag"]),
            human_count(a["errors"]),
            human_count(a["reconnects"]),
            human_count(a["left_out"]),
        ]
        for a in sorted(found, key=lambda a: -int(a["lag"]))
    ]
    columns = [
        "topic",
        "adapter",
        "state",
        "queues",
        "records/s",
        "bytes/s",
        "fetches",
        "lag",
        "errors",
        "reconnects",
        "left out",
    ]
    return _table("Adapters", columns, rows, 3)


def _subscriptions(found: list[dict[str, Any]]) -> RenderableType:
    rows = [
        [
            s["topic"],
            s["subscription"],
            human_count(s["lag"]),
            human_count(s["settled_per_s"]),
            human_count(s["outstanding"]),
            human_count(s.get("scheduled", 0)),
            human_count(s["redelivered"]),
            human_count(s["dead"]),
            str(s["members"]),
        ]
        for s in sorted(found, key=lambda s: -int(s["lag"]))
    ]
    columns = [
        "topic",
        "subscription",
        "lag",
        "acked/s",
        "outstanding",
        "scheduled",
        "again",
        "dead",
        "members",
    ]
    return _table("Durable subscriptions", columns, rows, 2)


def _agents(found: list[dict[str, Any]]) -> RenderableType:
    rows = [
        [
            a["kind"],
            a["name"],
            human_count(a.get("duty_cycles", 0)),
            human_count(a.get("parks", 0)),
            f"{a.get('duty_cycle_ns_max', 0) / 1000:.0f} us",
            human_count(sum(n for k, n in a.items() if k.startswith("invalid"))),
        ]
        for a in found
        if a["kind"] in ("sender", "receiver")
    ]
    columns = ["agent", "transport", "cycles", "parks", "longest", "invalid"]
    return _table("Agents", columns, rows, 2)
