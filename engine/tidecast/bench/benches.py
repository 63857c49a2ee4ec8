"""The benches: their workers, their floor, and their figures."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tidecast.bench.brokers.jetstream import jetstream
from tidecast.bench.consuming import consume
from tidecast.bench.durable import durable, recovery
from tidecast.bench.gateway import gateway
from tidecast.bench.kafka import kafka
from tidecast.bench.kafka_storage import kafka_storage
from tidecast.bench.loops.sealing import seal_turns
from tidecast.bench.measure import (
    Deadline,
    Result,
    Worker,
    histogram_us,
    machine,
    one_turn,
    percentiles_us,
    run_together,
    turns_within,
    workers,
)
from tidecast.bench.pulling import pausing, slow_consumer
from tidecast.bench.starting import start
from tidecast.bench.streams import streams
from tidecast.bench.tables import tables
from tidecast.bench.workers.live import write_keys
from tidecast.errors import ConfigError, TidecastError
from tidecast.native.crypto.libcrypto import (
    SUITE_NAMES,
    find_libcrypto,
)
from tidecast.native.mapped import MappedFile

MESSAGE_BYTES = 70
PORT = 17_400
TURNS = 5
"""How often `throughput` and `latency` measure the raw socket and ours, one behind the other."""
WITHIN_S = 300.0
LOSS_RING_BYTES = 16 << 20
IPC_TURNS, REQUEST_TURNS = 4, 3
# Four busy threads on two cores: a stage waits some milliseconds for its turn, and a ring must last
# as long. In 4 MiB (embedded, where rings in the cache are faster) it is empty after three.
ENGINE_RINGS = {
    "history_bytes": 32 << 20,
    "receive_bytes": 32 << 20,
    "socket_buffer_bytes": 64 << 20,
}
LOSS_FAULTS = {"duplicate": 0.02, "reorder": 0.05, "seed": 7}
LOSS_ROUNDS = 20_000
IPC_WARM_UP = 60_000
"""Rounds that do not count: the first lap of the rings costs a page fault (4 us) a page."""
Note = Callable[[str], None]


def messages_a_packet(packet_bytes: int, message_bytes: int) -> int:
    """How many messages fit a packet."""
    return (packet_bytes - 32) // (message_bytes + 4)


def floor_throughput(packet_bytes: int, seconds: float, message_bytes: int) -> dict[str, Any]:
    """Raw multicast on loopback: the same system calls, no protocol; received packets count.

    Raises TidecastError when none arrive.
    """
    soak, flood = run_together(
        Worker("soak", 1, port=PORT, packet_bytes=packet_bytes, duration_s=seconds),
        Worker("flood", 0, port=PORT, packet_bytes=packet_bytes, duration_s=seconds + 0.5),
    )
    if not soak["elapsed_s"]:
        raise TidecastError("raw sockets: no packets arrived over multicast on loopback")
    rate = soak["packets"] / soak["elapsed_s"]
    each = messages_a_packet(packet_bytes, message_bytes)
    sent = max(flood["packets_sent"], 1)
    return {
        "packets_per_s": round(rate),
        "msgs_per_s": round(rate * each),
        "delivered_share": round(soak["packets"] / sent, 3),
        "sender_cpu_ns_per_message": round(flood["cpu_s"] / (sent * each) * 1e9, 1),
    }


def _raw_ping_pong(port: int, rounds: int) -> np.ndarray:
    """Round trips of bare sockets in ns."""
    with tempfile.TemporaryDirectory() as folder:
        save = str(Path(folder) / "floor.npy")
        run_together(
            Worker("pong", 1, port=port, message_bytes=MESSAGE_BYTES, rounds=rounds),
            Worker("ping", 0, port=port, message_bytes=MESSAGE_BYTES, rounds=rounds, save=save),
        )
        raw: np.ndarray = np.load(save)
    return raw


def _engines(note: Note, **config: Any) -> tuple[list[Worker], list[str], list[Any]]:
    """Two engine processes with data directories of their own."""
    folders = [tempfile.TemporaryDirectory(prefix="tidecast-bench-") for _ in range(2)]
    if config.get("secure"):
        for each in folders:
            write_keys(each.name)
    engines = [
        Worker("engine", None, data_dir=f.name, node=i + 1, **config) for i, f in enumerate(folders)
    ]
    note("two engine processes")
    return engines, [f.name for f in folders], folders


@contextlib.contextmanager
def _pair(note: Note, shape: str, count: int, **config: Any) -> Iterator[tuple[Worker, Worker]]:
    """A subscriber at node 2 and a publisher at node 1 of ``count`` messages a turn, ready."""
    with contextlib.ExitStack() as stack:
        places: tuple[dict[str, Any], ...] = (config, config)
        if shape == "engine":
            engines, dirs, _ = _engines(note, **config)
            stack.enter_context(workers(*engines))
            places = tuple({"data_dir": each} for each in dirs)
        core = (0, 1) if shape == "embedded" else (None, None)
        about: dict[str, Any] = {"count": count, "message_bytes": MESSAGE_BYTES}
        subscriber = Worker("subscribe_compiled", core[1], node=2, **about, **places[1])
        publisher = Worker("publish_compiled", core[0], node=1, **about, **places[0])
        stack.enter_context(workers(subscriber, publisher))
        yield subscriber, publisher


def _transfer(note: Note, shape: str, count: int, **config: Any) -> tuple[Any, Any]:
    """(subscriber's, publisher's) outcome of ``count`` messages from node 1 to node 2."""
    with _pair(note, shape, count, **config) as both:
        for each in both:
            each.go()
        return both[0].result(), both[1].result()


def _pairs(note: Note, pairs: int, count: int, **config: Any) -> list[tuple[Any, Any]]:
    """(subscriber's, publisher's) outcomes of pairs of processes on two engines, a topic a pair."""
    engines, dirs, _ = _engines(note, pairs=pairs, **config)
    with workers(*engines):
        started: list[Worker] = []
        for topic in (f"bench.{k}" for k in range(pairs)):
            about: dict[str, Any] = {"topic": topic, "count": count, "message_bytes": MESSAGE_BYTES}
            started.append(Worker("subscribe_compiled", None, node=2, data_dir=dirs[1], **about))
            started.append(Worker("publish_compiled", None, node=1, data_dir=dirs[0], **about))
        outcomes = run_together(*started)
    return list(zip(outcomes[::2], outcomes[1::2], strict=True))


def _lanes(note: Note, lanes: int, messages: int, config: dict[str, Any]) -> Result:
    """As many pairs of publisher and subscriber as lanes, beside the same with one lane."""
    result = Result("throughput", {**config, "lanes": lanes})
    rates: dict[int, list[float]] = {1: [], lanes: []}
    metrics = dict.fromkeys(("received", "lost", "duplicated", "packets_resent"), 0)
    case = {
        "port": PORT + 10,
        "packet_bytes": config["packet_bytes"],
        "secure": config["secure"],
        **ENGINE_RINGS,
    }
    deadline = Deadline(config["within_s"])
    for turn in turns_within(deadline, TURNS):
        for n, of_n in rates.items():
            note(f"{lanes} pairs, lanes: {n}, turn {turn + 1} of {TURNS}")
            done = _pairs(note, lanes, messages // TURNS // lanes, lanes=n, **case)
            of_n.append(sum(_rate(received) for received, _ in done))
            for received, sent in done:
                for name in ("received", "lost", "duplicated"):
                    metrics[name] += received[name] if n == lanes else 0
                resent = sent["sender"].get("packets_resent", 0)
                metrics["packets_resent"] += resent if n == lanes else 0
    by_turn = zip(rates[1], rates[lanes], strict=True)
    result.config["msgs_per_s_by_turn"] = [[round(one), round(many)] for one, many in by_turn]
    middle = len(rates[1]) // 2
    result.floor = {"msgs_per_s": round(sorted(rates[1])[middle])}
    result.metrics = {"msgs_per_s": round(sorted(rates[lanes])[middle]), **metrics}
    result.metrics["bytes_per_s"] = result.metrics["msgs_per_s"] * MESSAGE_BYTES
    result.compare("msgs_per_s")
    return result


def _rate(received: dict[str, Any]) -> float:
    return float((received["received"] - received["first"]) / max(received["elapsed_s"], 1e-9))


def _turns(
    note: Note, config: dict[str, Any], case: dict[str, Any], seconds: float
) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """Figures of the floor, and the two outcomes of ours, of each turn that ended in time."""
    shape, secure, count = config["shape"], config["secure"], config["messages"] // TURNS
    floors: list[dict[str, Any]] = []
    turns = []
    with contextlib.ExitStack() as stack:
        note("starting")
        ours = stack.enter_context(_pair(note, shape, count, port=PORT + 10, secure=secure, **case))
        plain = (
            stack.enter_context(_pair(note, shape, count, port=PORT + 14, **case)) if secure else ()
        )
        deadline = Deadline(config["within_s"])
        for turn in turns_within(deadline, TURNS):  # a machine changes its speed within seconds
            note(f"floor, turn {turn + 1} of {TURNS}")
            if plain:
                floors.append({"msgs_per_s": round(_rate(one_turn(deadline, *plain)[0]))})
            else:
                each_s = seconds / TURNS
                floors.append(floor_throughput(config["packet_bytes"], each_s, MESSAGE_BYTES))
            note(f"{count} messages, {shape}, turn {turn + 1} of {TURNS}")
            turns.append(one_turn(deadline, *ours))
    return floors, turns


def throughput(
    note: Note,
    *,
    shape: str = "embedded",
    packet_bytes: int = 1400,
    messages: int = 60_000_000,
    seconds: float = 2.0,
    secure: bool = False,
    lanes: int = 1,
    within_s: float = WITHIN_S,
) -> Result:
    """70-byte messages, reliable, ordered, loopback multicast, two processes, compiled.

    Raw sockets and ours in turns; the median of each. ``secure``: plain and sealed packets.
    ``lanes``: several, beside one, with as many pairs of processes and two engines.
    ``within_s``: for the turns. The bench does the turns that end in time, at least one. Raises
    Timeout when not even that does.
    """
    if lanes > 1:
        if shape != "engine":
            raise ConfigError(
                f"lanes: {lanes}: agents of the shape embedded run in one thread: "
                "allowed with --shape engine"
            )
        about = {
            "shape": shape,
            "packet_bytes": packet_bytes,
            "messages": messages // 2,
            "message_bytes": MESSAGE_BYTES,
            "secure": secure,
            "within_s": within_s,
        }
        return _lanes(note, lanes, messages // 2, about | ENGINE_RINGS | machine())
    rings: dict[str, Any] = {}
    if shape == "engine":
        messages, rings = messages // 2, ENGINE_RINGS
    config = {
        "shape": shape,
        "packet_bytes": packet_bytes,
        "messages": messages,
        "message_bytes": MESSAGE_BYTES,
        "secure": secure,
        "within_s": within_s,
        **rings,
        **machine(),
    }
    result = Result("throughput", config)
    case = {"packet_bytes": packet_bytes, **rings}
    floors, turns = _turns(note, config, case, seconds)
    middle = len(turns) // 2
    result.floor = sorted(floors, key=lambda each: float(each["msgs_per_s"]))[middle]
    rates = [_rate(received) for received, _ in turns]
    config["msgs_per_s_by_turn"] = [
        [each["msgs_per_s"], round(rate)] for each, rate in zip(floors, rates, strict=True)
    ]
    result.metrics = {
        "msgs_per_s": round(sorted(rates)[middle]),
        "bytes_per_s": round(sorted(rates)[middle] * MESSAGE_BYTES),
        "packets_resent": sum(sent["sender"].get("packets_resent", 0) for _, sent in turns),
        **{
            name: sum(received[name] for received, _ in turns)
            for name in ("received", "lost", "duplicated")
        },
    }
    result.compare("msgs_per_s")
    return result


def loss(
    note: Note, *, drop: float = 0.05, messages: int = 10_000_000, packet_bytes: int = 1400
) -> Result:
    """The same under injected loss, duplicates and reordering, and without loss, in turns.

    `throughput_kept` is the median of the turns' ratios: a turn's two runs follow each other, since
    a virtual machine changes its speed within seconds.
    """
    result = Result(
        "loss",
        {
            "drop": drop,
            "messages": messages,
            "packet_bytes": packet_bytes,
            "ring_bytes": LOSS_RING_BYTES,
            **LOSS_FAULTS,
            **machine(),
        },
    )
    note("raw sockets, without loss")
    result.floor = floor_throughput(packet_bytes, 2.0, MESSAGE_BYTES)
    bare = percentiles_us(_raw_ping_pong(PORT + 40, LOSS_ROUNDS))
    result.floor |= {f"at_1_percent_{k}": v for k, v in bare.items()}
    rates: dict[float, list[float]] = {0.0: [], drop: []}
    case = {
        "packet_bytes": packet_bytes,
        "history_bytes": LOSS_RING_BYTES,
        "receive_bytes": LOSS_RING_BYTES,
        "socket_buffer_bytes": LOSS_RING_BYTES * 2,
    }
    for turn in range(TURNS):
        for share in (0.0, drop):
            note(f"{messages} messages at {share:.0%} loss, turn {turn + 1} of {TURNS}")
            faults = {"drop": share, **LOSS_FAULTS}
            received, sent = _transfer(
                note, "embedded", messages, port=PORT + 20, faults=faults, **case
            )
            rates[share].append(_rate(received))
    plain, lossy = (np.array(rates[share]) for share in (0.0, drop))
    kept = lossy / plain
    result.config["throughput_kept_by_turn"] = [round(float(each), 4) for each in kept]
    sender, receiver = sent["sender"], received["receiver"]
    lost_bytes = receiver.get("faults_dropped_bytes", 0)
    result.metrics = {
        "msgs_per_s": round(float(np.median(lossy))),
        "msgs_per_s_without_loss": round(float(np.median(plain))),
        "throughput_kept": round(float(np.median(kept)), 4),
        "lost": received["lost"],
        "duplicated": received["duplicated"],
        "resent_bytes": sender.get("bytes_resent", 0),
        "lost_bytes": lost_bytes,
        "resent_ratio": round(sender.get("bytes_resent", 0) / max(lost_bytes, 1), 4),
        "naks_sent": received["image"].get("naks_sent", 0),
    }
    note("ping-pong at 1 % loss")
    samples = _ping_pong(PORT + 30, LOSS_ROUNDS, faults={"drop": 0.01, "seed": 11})
    result.metrics |= {f"at_1_percent_{k}": v for k, v in percentiles_us(samples).items()}
    result.histograms["at_1_percent"] = histogram_us(samples)
    result.compare("msgs_per_s", "msgs_per_s")
    for name in ("p50", "p999"):
        result.compare(f"at_1_percent_rtt_{name}_us", f"at_1_percent_{name}")
    return result


def _ping_pong(port: int, rounds: int, **config: Any) -> np.ndarray:
    """Round trips in ns. Raises TidecastError when there were none."""
    with tempfile.TemporaryDirectory() as folder:
        save = str(Path(folder) / "samples.npy")
        run_together(
            Worker(
                "live_pong",
                1,
                node=2,
                rounds=rounds,
                message_bytes=MESSAGE_BYTES,
                port=port,
                **config,
            ),
            Worker(
                "live_ping",
                0,
                node=1,
                rounds=rounds,
                message_bytes=MESSAGE_BYTES,
                port=port,
                save=save,
                **config,
            ),
        )
        samples = np.load(save)
    measured: np.ndarray = samples[samples > 0]
    if not measured.size:
        raise TidecastError("ping-pong: no round trip within the time of the bench")
    return measured


def _medians_us(turns: list[tuple[np.ndarray, np.ndarray]]) -> list[list[float]]:
    """[raw, ours] of each turn."""
    return [[round(float(np.median(each)) / 1000, 3) for each in turn] for turn in turns]


def latency(note: Note, *, rounds: int = 200_000, secure: bool = False) -> Result:
    """Ping-pong of 70 bytes over loopback multicast, embedded inline, both sides spinning.

    Raw sockets and ours in turns; the samples of all turns together. ``secure``: plain and sealed
    packets.
    """
    result = Result("latency", {"rounds": rounds, "message_bytes": MESSAGE_BYTES, **machine()})
    turns = []
    for turn in range(TURNS):
        note(f"floor, turn {turn + 1} of {TURNS}")
        if secure:
            floor = _ping_pong(PORT + 60, rounds // TURNS)
        else:
            floor = _raw_ping_pong(PORT + 40, rounds // TURNS)
        note("Tidecast, embedded inline")
        turns.append((floor, _ping_pong(PORT + 60, rounds // TURNS, secure=secure)))
    raw, ours = (np.concatenate(each) for each in zip(*turns, strict=True))
    result.config["rtt_p50_us_by_turn"] = _medians_us(turns)
    result.floor, result.metrics = percentiles_us(raw), percentiles_us(ours)
    result.histograms = {"floor": histogram_us(raw), "tidecast": histogram_us(ours)}
    for name in ("p50", "p99", "p999"):
        result.compare(f"rtt_{name}_us", name)
    return result


def ipc(
    note: Note, *, messages: int = 60_000_000, rounds: int = 50_000, message_bytes: int = 64
) -> Result:
    """Shared memory: two processes, one engine, compiled; beside a plain ring with no protocol."""
    config = {"messages": messages, "message_bytes": message_bytes, "warm_up_rounds": IPC_WARM_UP}
    result = Result("ipc", {**config, **machine()})
    with tempfile.TemporaryDirectory(prefix="tidecast-bench-") as folder:
        with _plain_memory(folder) as shared:
            note("plain memory")
            read, _ = run_together(
                Worker("memory_read", 1, path=shared, message_bytes=message_bytes),
                Worker("memory_write", 0, path=shared, message_bytes=message_bytes, duration_s=1.5),
            )
        result.floor = {"msgs_per_s": round(read["messages"] / read["elapsed_s"])}
        engine = Worker("engine", None, data_dir=folder, node=1, kind="ipc", port=PORT + 80)
        with workers(engine):
            note(f"{messages} messages through a ring")
            received, _sent = run_together(
                Worker("subscribe_compiled", 1, node=1, count=messages, data_dir=folder),
                Worker(
                    "publish_compiled",
                    0,
                    node=1,
                    count=messages,
                    data_dir=folder,
                    message_bytes=message_bytes,
                ),
            )
            turns = [_ipc_turn(note, folder, rounds, message_bytes) for _ in range(IPC_TURNS)]
    floors, samples = (np.concatenate(each) for each in zip(*turns, strict=True))
    result.floor |= percentiles_us(floors)
    result.config["rtt_p50_us_by_turn"] = _medians_us(turns)
    result.metrics = {
        "msgs_per_s": round(_rate(received)),
        "lost": received["lost"],
        "duplicated": received["duplicated"],
        **percentiles_us(samples),
    }
    result.compare("msgs_per_s")
    result.compare("rtt_p50_us", "p50")
    return result


@contextlib.contextmanager
def _plain_memory(folder: str) -> Iterator[str]:
    """A file of shared memory, there before any worker looks for it."""
    made = MappedFile.create(Path("/dev/shm", Path(folder).name), 8 << 20)
    try:
        yield str(made.path)
    finally:
        made.unlink()


def _ipc_turn(
    note: Note, folder: str, rounds: int, message_bytes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Round trips in ns of two words of shared memory, one a cache line, and of two topics.

    One straight after the other: a virtual machine's cores may be near to each other or far, three
    times as slow, and change within seconds.
    """
    note("ping-pong")
    saved = [str(Path(folder) / name) for name in ("memory.npy", "ring.npy")]
    with _plain_memory(folder) as shared:
        run_together(
            Worker("memory_pong", 1, path=shared, rounds=rounds),
            Worker("memory_ping", 0, path=shared, rounds=rounds, save=saved[0]),
        )
    config: dict[str, Any] = {"message_bytes": message_bytes, "node": 1}
    config["rounds"] = rounds + IPC_WARM_UP
    run_together(
        Worker("live_pong", 1, data_dir=folder, **config),
        Worker("live_ping", 0, data_dir=folder, save=saved[1], **config),
    )
    return np.load(saved[0]), np.load(saved[1])[IPC_WARM_UP:]


def python(note: Note, *, messages: int = 2_000_000) -> Result:
    """The rates of a Python program: single messages and batches, over UDP and over ipc.

    One by one the subscriber looks at each message's bytes, or (``one_nothing``) at nothing, as the
    peers' most favourable reading. Batches are lists of `bytes` on both sides; or arrays whose
    numbers the subscriber looks at, or which it leaves in place (``batch_in_place``).
    """
    result = Result("python", {"messages": messages, "message_bytes": MESSAGE_BYTES, **machine()})
    cases = (
        ("one", "one", 1),
        ("one_nothing", "nothing", 1),
        ("batch_list", "list", 4),
        ("batch_array", "array", 6),
        ("batch_in_place", "in_place", 6),
    )
    note("raw sockets")
    raw = floor_throughput(1400, 2.0, MESSAGE_BYTES)
    for case, how, times in cases:
        count = messages * times
        note(f"multicast, {case}")
        received, published = run_together(
            Worker("python_subscribe", 1, node=2, count=count, how=how, port=PORT + 90),
            Worker(
                "python_publish",
                0,
                node=1,
                count=count,
                how=how,
                message_bytes=MESSAGE_BYTES,
                port=PORT + 90,
            ),
        )
        result.metrics[f"udp_{case}_msgs_per_s"] = round(
            received["received"] / received["elapsed_s"]
        )
        result.metrics[f"udp_publish_{case}_msgs_per_s"] = round(
            published["published"] / published["elapsed_s"]
        )
        note(f"ipc between two processes, {case}")
        result.metrics[f"ipc_two_{case}_msgs_per_s"] = _python_ipc(count, how)
        note(f"ipc in one process, {case}")
        (loop,) = run_together(
            Worker("python_loop", 0, count=count, how=how, message_bytes=MESSAGE_BYTES, port=PORT)
        )
        result.metrics[f"ipc_loop_{case}_msgs_per_s"] = round(loop["received"] / loop["elapsed_s"])
        result.floor[f"udp_{case}_msgs_per_s"] = raw["msgs_per_s"]
        result.compare(f"udp_{case}_msgs_per_s")
    return result


def _python_ipc(count: int, how: str) -> int:
    """Publisher and subscriber of one engine, each a process: as the peers' ipc is measured."""
    with tempfile.TemporaryDirectory(prefix="tidecast-bench-") as folder:
        config: dict[str, Any] = {"data_dir": folder, "count": count, "how": how, "node": 1}
        engine = Worker("engine", None, data_dir=folder, node=1, kind="ipc", port=PORT + 95)
        with workers(engine):
            received, _ = run_together(
                Worker("python_subscribe", 1, **config),
                Worker("python_publish", 0, message_bytes=MESSAGE_BYTES, **config),
            )
    return int(received["received"] / received["elapsed_s"])


def _requests(engine_dir: str, how: str, rounds: int) -> np.ndarray:
    """Round trips of requests between two clients of an engine, or over a bare socket; ns."""
    with tempfile.TemporaryDirectory() as folder:
        save = str(Path(folder) / "samples.npy")
        asked: dict[str, Any] = {"rounds": rounds, "message_bytes": MESSAGE_BYTES, "save": save}
        if how == "socket":
            path = str(Path(folder) / "socket")
            pair = (
                Worker("socket_reply", 1, path=path),
                Worker("socket_ask", 0, path=path, **asked),
            )
        else:
            pair = (
                Worker("reply", 1, data_dir=engine_dir, how=how),
                Worker("ask", 0, data_dir=engine_dir, how=how, **asked),
            )
        run_together(*pair)
        found: np.ndarray = np.load(save)
    return found


def request(note: Note, *, rounds: int = 20_000) -> Result:
    """Requests and replies of 70 bytes over shared memory, from plain Python, one at a time.

    A requester and a responder are two processes, clients of one engine. In turns: a bare Unix
    socket between two Python processes, the blocking client, and the asyncio client.
    """
    result = Result("request", {"rounds": rounds, "message_bytes": MESSAGE_BYTES, **machine()})
    turns: dict[str, list[np.ndarray]] = {"socket": [], "sync": [], "asyncio": []}
    with (
        tempfile.TemporaryDirectory(prefix="tidecast-bench-") as folder,
        workers(Worker("engine", None, data_dir=folder, node=1, port=PORT, kind="ipc")),
    ):
        for turn in range(REQUEST_TURNS):
            for how, samples in turns.items():
                note(f"{how}, turn {turn + 1} of {REQUEST_TURNS}")
                samples.append(_requests(folder, how, max(rounds // REQUEST_TURNS, 1)))
    bare, sync, on_loop = (np.concatenate(each) for each in turns.values())
    result.floor = percentiles_us(bare)
    result.metrics = percentiles_us(sync) | percentiles_us(on_loop, "asyncio_rtt")
    result.config["rtt_p50_us_by_turn"] = [
        round(float(np.median(each)) / 1000, 3) for each in turns["sync"]
    ]
    result.histograms = {"floor": histogram_us(bare), "tidecast": histogram_us(sync)}
    for name in ("p50", "p99"):
        result.compare(f"rtt_{name}_us", name)
    return result


def fanout(
    note: Note, *, messages: int = 400_000, subscribers: tuple[int, ...] = (1, 2, 4, 8, 16)
) -> Result:
    """The sender's cost a message with more and more subscribers, each a node of its own.

    On loopback the kernel copies a multicast datagram into each socket within the sender's system
    call. So the floor is as many raw sockets, and the same packets in as many calls and as long.
    """
    result = Result(
        "fanout",
        {
            "messages": messages,
            "message_bytes": MESSAGE_BYTES,
            "subscribers": list(subscribers),
            **machine(),
        },
    )
    for n in subscribers:
        note(f"{n} subscribers")
        received, sent = run_together(
            Worker("fan_subscribe", 1, count=messages, subscribers=n, port=PORT + 100),
            Worker(
                "fan_publish",
                0,
                node=1,
                count=messages,
                subscribers=n,
                message_bytes=MESSAGE_BYTES,
                port=PORT + 100,
            ),
        )
        sender = sent["sender"]
        packets = sender.get("packets_sent", 0)
        note(f"{n} raw sockets")
        _, raw = run_together(
            Worker(
                "soak_many",
                1,
                port=PORT + 120,
                packet_bytes=1400,
                sockets=n,
                duration_s=sent["elapsed_s"],
            ),
            Worker(
                "send_paced",
                0,
                port=PORT + 120,
                packet_bytes=1400,
                packets=packets,
                calls=sent["system_calls"],
                elapsed_s=sent["elapsed_s"],
            ),
        )
        cost = f"sender_cpu_ns_per_message_{n}"
        result.metrics[f"lost_{n}"] = received["lost"]
        result.metrics[f"packets_sent_{n}"] = packets
        result.metrics[f"system_calls_{n}"] = sent["system_calls"]
        result.metrics[f"status_received_{n}"] = sender.get("status_received", 0)
        result.metrics[f"naks_received_{n}"] = sender.get("naks_received", 0)
        result.metrics[cost] = round(sent["cpu_s"] / messages * 1e9, 1)
        result.floor[cost] = round(raw["cpu_s"] / messages * 1e9, 1)
        result.compare(cost, cost)
    first, last = subscribers[0], subscribers[-1]
    result.metrics["packets_sent_growth"] = round(
        result.metrics[f"packets_sent_{last}"] / max(result.metrics[f"packets_sent_{first}"], 1), 4
    )
    return result


def idle(note: Note, *, seconds: float = 5.0) -> Result:
    """An engine process with nothing to do: share of a core, resident memory."""
    result = Result("idle", {"seconds": seconds, **machine()})
    with tempfile.TemporaryDirectory(prefix="tidecast-bench-") as folder:
        note(f"idle engine for {seconds:g} s")
        (found,) = run_together(
            Worker("idle", None, data_dir=folder, seconds=seconds, port=PORT + 110)
        )
    result.metrics = found
    return result


def floor(note: Note, *, packet_bytes: int = 1400, seconds: float = 2.0) -> Result:
    """The same system calls with no protocol: the physical limit of this machine."""
    result = Result("floor", {"packet_bytes": packet_bytes, **machine()})
    note(f"raw multicast at {packet_bytes} bytes")
    result.floor = floor_throughput(packet_bytes, seconds, MESSAGE_BYTES)
    result.metrics = dict(result.floor)
    return result


def seal(note: Note, *, packet_bytes: int = 1400) -> Result:
    """AES-GCM of libcrypto in kernels, beside a copy of the packet.

    ``run``: packets as a sender seals them, with headers, numbers and nonces, beside the cipher.
    """
    library = find_libcrypto()
    config = {"packet_bytes": packet_bytes, "libcrypto": library.version}
    result = Result("seal", {**config, **machine()})
    for suite, name in SUITE_NAMES.items():
        note(name)
        best = seal_turns(library, suite, packet_bytes)
        for step, floor_of in (("seal", "copy"), ("open", "copy"), ("run", "seal")):
            figure = f"{name.replace('-', '_')}_{step}_ns_per_packet"
            result.metrics[figure] = round(best[step], 1)
            result.floor[figure] = round(best[floor_of], 1)
            result.compare(figure)
    return result


BENCHES: dict[str, Callable[..., Result]] = {
    "floor": floor, "throughput": throughput, "python": python, "latency": latency, "ipc": ipc,
    "fanout": fanout, "loss": loss, "idle": idle, "durable": durable, "recovery": recovery,
    "gateway": gateway, "request": request,
    "consume": consume, "pausing": pausing, "slow-consumer": slow_consumer, "streams": streams,
    "start": start, "seal": seal, "kafka": kafka, "kafka-storage": kafka_storage,
    "tables": tables, "jetstream": jetstream,
}  # fmt: skip


def check_shape(name: str, shape: str) -> None:
    """Raises ConfigError when a bench has no such shape."""
    if shape == "engine" and name not in ("throughput", "all"):
        raise ConfigError(f"shape: engine: bench {name} runs embedded only")
