"""The command line against an engine whose node has no agents."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import click
import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result
from tests.project import ROOT
from tests.support.fake_node import FakeNode

from tidecast.buffers.counters import CountersFile
from tidecast.cli import COMMANDS, main
from tidecast.cli.common import Stop, command_name, new_log, stoppable
from tidecast.cli.control import PORTS_TRIED_MAX, free_port, service_state
from tidecast.cli.messages import requests, sub
from tidecast.cli.messages.reading import DurableFlow
from tidecast.cli.messages.splitting import splitter_of
from tidecast.cli.top import ROWS_SHOWN_MAX
from tidecast.cli.topics.subscription import table
from tidecast.cli.topics.topic import _SETTINGS
from tidecast.config.topology import TopicConfig, default_topology, load_topology
from tidecast.engine.process import Engine
from tidecast.errors import ConfigError
from tidecast.events import DeliveryPaused
from tidecast.layout import counters as counters_layout
from tidecast.layout.counters import Counter


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    engine = Engine(
        tmp_path,
        default_topology(),
        topology_file=tmp_path / "topology.yaml",
        node_factory=FakeNode,
    )
    engine.start()
    assert isinstance(engine.node, FakeNode)
    yield engine.node
    engine.stop()


def run(tmp_path: Path, *arguments: str, code: int = 0, stdin: str = "") -> Result:
    result = CliRunner().invoke(main, [*arguments, "--data-dir", str(tmp_path)], input=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    return result


# --- the group ------------------------------------------------------------------------------------


def test_help_imports_no_command_and_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from tidecast.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'numba', 'rich', 'yaml', 'msgspec', 'asyncio'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT / "engine")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert f"\n  {name} " in done.stdout


def commands(group: click.Group, *before: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*before, name), command
        if isinstance(command, click.Group):
            yield from commands(command, *before, name)


def test_every_command_explains_itself_and_takes_a_data_directory() -> None:
    for names, command in commands(main):
        result = CliRunner().invoke(main, [*names, "--help"])
        assert result.exit_code == 0, result.output
        assert isinstance(command, click.Group) or "--data-dir" in result.output, names


def test_a_look_at_topics_makes_no_file(tmp_path: Path) -> None:
    run(tmp_path, "topic", "list")
    assert not list(tmp_path.iterdir())


def test_errors_and_usage(tmp_path: Path) -> None:
    result = run(tmp_path, "faults", "show", code=1)
    assert result.stderr.startswith("error: no engine runs on ")
    assert "Traceback" not in result.stderr
    assert CliRunner().invoke(main, ["nonsense"]).exit_code == 2
    assert "tidecast 0." in CliRunner().invoke(main, ["--version"]).output


def test_a_second_platform_takes_the_next_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert port < free_port(port) < port + PORTS_TRIED_MAX


def test_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidecast.cli", "topic", "list", "--data-dir", str(tmp_path)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "error: output cannot be written: No space left on device\n",
    )


def test_a_stopped_command_ends_in_order_with_the_signal_in_its_code() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stops, stop = [], Stop()
    try:
        with stoppable(stop):
            stops.append(stop.code)
            signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt:
        stops.append(stop.code)
    assert stops == [130, 143]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_command_may_be_stopped_as_soon_as_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    before, install, stop = signal.getsignal(signal.SIGTERM), signal.signal, Stop()

    def then_comes(number: signal.Signals, handler: signal.Handlers) -> None:
        install(number, handler)
        if handler is not before:
            signal.raise_signal(number)

    monkeypatch.setattr(signal, "signal", then_comes)
    with pytest.raises(KeyboardInterrupt), stoppable(stop):
        pytest.fail("the signal came before")
    assert stop.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("lag", "scheduled", "ended", "text"),
    [
        (0, 0, True, ""),
        (2, 1, False, ""),
        (1, 1, True, "1 record waits for the delivery time\n"),
        (2, 2, True, "2 records wait for the delivery time\n"),
    ],
)
def test_sub_does_not_wait_for_delivery_times(
    capsys: pytest.CaptureFixture[str], lag: int, scheduled: int, ended: bool, text: str
) -> None:
    consumer = Mock()
    consumer.info.return_value = {"lag": lag, "scheduled": scheduled}
    assert DurableFlow(Mock(), consumer, Mock(), Mock()).ended() is ended
    assert capsys.readouterr().err == text


def test_sub_reports_the_pauses_of_its_subscription(capsys: pytest.CaptureFixture[str]) -> None:
    consumer = Mock(pattern="orders.*")
    consumer.name = "billing"
    flow = DurableFlow(Mock(), consumer, Mock(), Mock())
    for topic, queue, name, paused in (
        ("orders.eu", -1, "", True),
        ("orders.eu", 2, "", True),
        ("orders.*", -1, "billing", True),
        ("orders.*", -1, "billing", False),
        ("orders.*", -1, "other", True),
        ("invoices", -1, "", True),
    ):
        flow.report(DeliveryPaused(topic=topic, queue=queue, subscription=name, paused=paused))
    assert capsys.readouterr().err.splitlines() == [
        "deliveries of orders.eu are paused until they are resumed",
        "deliveries of queue 2 of orders.eu are paused until they are resumed",
        "deliveries of orders.* to subscription billing are paused until they are resumed",
        "deliveries of orders.* to subscription billing are resumed",
    ]


def _subscribes(flow: Mock) -> None:
    sub._run(flow, None, None, None, "subscribed", until_end=False)


def _responds(client: Mock) -> None:
    requests._serve(client, Mock(), Mock(), 1, None, "responding")


@pytest.mark.parametrize("serves", [_subscribes, _responds])
def test_a_command_listens_before_it_says_that_it_serves(
    monkeypatch: pytest.MonkeyPatch, serves: Callable[[Mock], None]
) -> None:
    early = list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, _: early.append(number))
    monkeypatch.setattr(click, "echo", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    try:
        with pytest.raises(SystemExit) as ended:
            serves(Mock())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not early
    assert ended.value.code == 143


def test_down_without_engine(tmp_path: Path) -> None:
    assert run(tmp_path, "down").output == "nothing was up\n"


def test_up_says_that_it_is_up_already(tmp_path: Path, node: FakeNode) -> None:
    output = run(tmp_path, "up").output
    assert f"already up: engine pid {os.getpid()}, node {node.name}" in output
    assert f"already (pid {os.getpid()})" in run(tmp_path, "engine", code=1).stderr


def test_up_goes_on_with_a_service_that_outlived_its_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = []
    monkeypatch.setattr(
        "tidecast.cli.engine._detach", lambda *given: urls.append(given[4])
    )  # what would start the engine
    url = "http://127.0.0.1:7488"
    (tmp_path / "control-service.json").write_text(json.dumps({"pid": os.getpid(), "url": url}))
    with (tmp_path / "control-service.lock").open("w") as lock:
        assert service_state(tmp_path) is None  # left by a crash; the pid is somebody else's now
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run(tmp_path, "up", "--detach").output.startswith(f"control service: {url} (it ran")
    assert urls == [url]
    assert run(tmp_path, "down").output == "nothing was up\n"  # and this process lives on


def test_a_log_is_kept_when_the_next_one_begins(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    for text in ("first", "second"):
        new_log(log).write_text(text)
    assert (log.read_text(), (tmp_path / "engine.log.1").read_text()) == ("second", "first")


def test_square_brackets_of_payloads_are_shown_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table(("payload",), [("[/x] [red]y",)])
    assert "[/x] [red]y" in capsys.readouterr().out


def test_hints_name_the_command_as_it_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["a b/bin/tidecast"])
    monkeypatch.setenv("PATH", "")
    assert command_name() == "'a b/bin/tidecast'"
    monkeypatch.setattr(sys, "argv", ["cli/__main__.py"])
    assert command_name() == "tidecast"


# --- topic ----------------------------------------------------------------------------------------


def test_the_options_are_those_of_the_topic() -> None:
    assert {name for name, _, _ in _SETTINGS} | {"name", "labels"} == set(
        TopicConfig.__struct_fields__
    )


def test_topics_in_the_file(tmp_path: Path) -> None:
    output = run(
        tmp_path, "topic", "create", "md.eu", "--history-bytes", "1MiB", "--label", "team=rates"
    ).output
    assert output.startswith("created topic md.eu (id 33203, multicast) in ")
    assert "(no engine runs)" in output
    topic = load_topology(tmp_path / "topology.yaml").topics[0]
    assert (topic.history_bytes, topic.labels) == (1 << 20, {"team": "rates"})
    assert "exists already" in run(tmp_path, "topic", "create", "md.eu", code=1).stderr
    near = run(tmp_path, "topic", "show", "md.ue", code=1).stderr
    assert "no topic md.ue (did you mean md.eu?)" in near
    run(tmp_path, "topic", "create", "md.eu", "--if-missing")
    run(tmp_path, "topic", "create", "other")
    names = [t["name"] for t in json.loads(run(tmp_path, "topic", "list", "--json").output)]
    assert names == ["md.eu", "other"]
    assert "other" not in run(tmp_path, "topic", "list", "md.*").output
    run(tmp_path, "topic", "edit", "md.eu", "--linger-us", "9")
    shown = json.loads(run(tmp_path, "topic", "show", "md.eu", "--json").output)
    assert (shown["linger_us"], shown["id"]) == (9, 33203)
    run(tmp_path, "topic", "delete", "md.eu", code=1, stdin="n\n")
    run(tmp_path, "topic", "delete", "md.eu", "--yes")
    assert "no topic md.eu" in run(tmp_path, "topic", "show", "md.eu", code=1).stderr


def test_a_shown_topic_can_be_made_again_by_its_line(tmp_path: Path) -> None:
    run(
        tmp_path,
        "topic",
        "create",
        "a",
        "--flow",
        "rate",
        "--rate-bytes-per-s",
        "1MB",
        "--description",
        "it's",
        "--label",
        "x=y z",
    )
    last = run(tmp_path, "topic", "show", "a").output.splitlines()[-1]
    before = load_topology(tmp_path / "topology.yaml")
    run(tmp_path, "topic", "delete", "a", "--yes")
    result = CliRunner().invoke(main, shlex.split(last.removeprefix("# tidecast ")))
    assert result.exit_code == 0, result.output
    assert load_topology(tmp_path / "topology.yaml") == before


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["create", "a b"], "topic 'a b': name: 'a b': allowed tokens", 1),
        (["create", "a", "--linger-us", "-1"], "topic a: linger_us: -1: allowed 0..1000000", 1),
        (["create", "a", "--transport", "x"], "topic a: transport: x: allowed ipc", 1),
        (["create", "a", "--history-bytes", "lots"], "not a size", 2),
        (["create", "a", "--flow", "x"], "--flow", 2),
        (["create", "a", "--label", "x"], "KEY=VALUE", 2),
        (["edit", "a"], "nothing to change", 2),
        (["edit", "a", "--linger-us", "3"], "no topic a", 1),
        (["list", "a.>.b"], "topic pattern", 1),
    ],
)
def test_topic_errors(tmp_path: Path, arguments: list[str], said: str, code: int) -> None:
    assert said in run(tmp_path, "topic", *arguments, code=code).stderr


def test_topics_in_the_engine(tmp_path: Path, node: FakeNode) -> None:
    assert "in the running engine" in run(tmp_path, "topic", "create", "a").output
    run(tmp_path, "topic", "edit", "a", "--rate-packets-per-s", "100")
    stderr = run(tmp_path, "topic", "edit", "a", "--receive-bytes", "1MiB", code=1).stderr
    assert "receive_bytes of topic a cannot change while it runs" in stderr
    run(tmp_path, "topic", "edit", "a", "--receive-bytes", "1MiB", "--recreate")
    assert [call[0] for call in node.calls] == [
        "create_topic",
        "edit_topic",
        "delete_topic",
        "create_topic",
    ]
    assert load_topology(tmp_path / "topology.yaml").topics == node.topics()
    run(tmp_path, "topic", "delete", "a", "--yes")
    assert node.topics() == []


# --- faults ---------------------------------------------------------------------------------------


def test_faults(tmp_path: Path, node: FakeNode) -> None:
    run(tmp_path, "faults", "set", "--transport", "multicast", "--drop", "0.05", "--duplicate",
        "0.02", "--reorder", "0.05", "--delay", "2ms", "--corrupt", "0.001", "--partition", "A,B",
        "--seed", "7")  # fmt: skip
    assert msgspec.to_builtins(node.get_faults()["multicast"]) == {
        "drop": 0.05,
        "duplicate": 0.02,
        "reorder": 0.05,
        "corrupt": 0.001,
        "delay_us": 2000.0,
        "partition": ("A", "B"),
        "seed": 7,
    }
    shown = json.loads(run(tmp_path, "faults", "show", "--json").output)
    assert shown["multicast"]["drop"] == 0.05
    assert "multicast: drop=0.05" in run(tmp_path, "faults", "show").output
    run(tmp_path, "faults", "clear")
    assert not node.get_faults()["multicast"].any
    assert "no transport x" in run(tmp_path, "faults", "set", "--transport", "x", code=1).stderr
    run(tmp_path, "faults", "set", "--drop", "2", code=2)


# --- top ------------------------------------------------------------------------------------------


def test_top_once(tmp_path: Path, node: FakeNode) -> None:
    counters = CountersFile.open(node.counters_path)
    row = counters.allocate(counters_layout.ROW_PUBLICATION, "md", node.name, session=9)
    counters.values[row, Counter.HEAD] = 100
    counters.values[row, Counter.SLOWEST_CONSUMED] = 50
    counters.values[row, Counter.SLOTS] = 200
    for source in ("x", "y"):
        row = counters.allocate(counters_layout.ROW_IMAGE, "md", source, session=10)
        counters.values[row, Counter.PACKETS_RECEIVED] = 90
        counters.values[row, Counter.LOSSES] = 10 if source == "y" else 0
    output = run(tmp_path, "top", "--once", "--json", "--interval", "0.1").output
    shown = json.loads(output)
    assert shown["publications"][0]["fill"] == 0.25
    assert shown["publications"][0]["packets_per_s"] == 0.0
    assert shown["sources"][0] == {
        "node": "y",
        "packets": 90,
        "losses": 10,
        "recovered": 0,
        "lost_for_good": 0,
        "loss_ratio": 0.1,
    }
    text = run(tmp_path, "top", "--once", "--interval", "0.1").output
    assert "Publications" in text
    assert "25%" in text
    assert "10.000%" in text


def test_top_shows_a_page_of_rows(tmp_path: Path, node: FakeNode) -> None:
    counters = CountersFile.open(node.counters_path)
    for i in range(ROWS_SHOWN_MAX + 5):
        counters.allocate(counters_layout.ROW_IMAGE, f"t{i}", "x", session=i)
    assert "and 5 more" in run(tmp_path, "top", "--once", "--interval", "0.1").output


# --- recorder -------------------------------------------------------------------------------------


@dataclasses.dataclass
class Noted:
    writer: int
    section: int
    code: int
    entity: int


def test_recorder(tmp_path: Path) -> None:
    from tidecast.buffers.recorder import create_recorder, record_from_python
    from tidecast.layout import recorder as rec

    assert "no flight recorder" in run(tmp_path, "recorder", code=1).stderr
    file = create_recorder(tmp_path / "recorder")
    assert run(tmp_path, "recorder").output == "nothing was noted\n"
    for at, one in enumerate(
        [
            Noted(rec.WRITER_SENDER, rec.LOW, rec.Code.STARTED, 0),
            Noted(rec.WRITER_RECEIVER, rec.HIGH, rec.Code.NAK_SENT, 17),
            Noted(rec.WRITER_CONDUCTOR, rec.ALERT, rec.Code.GAP, 17),
        ]
    ):
        record_from_python(
            file.array, one.writer, one.section, at, int(one.code), one.entity, 1, 2, 3, 4
        )
    texts = run(tmp_path, "recorder").output.splitlines()
    assert ["agent started" in texts[0], "NAK sent first=1" in texts[1], "lost" in texts[2]] == [
        True,
        True,
        True,
    ]
    (only,) = run(tmp_path, "recorder", "--section", "alert", "--json").output.splitlines()
    parsed = json.loads(only)
    assert (parsed["code"], parsed["entity"], parsed["first"], parsed["end"]) == ("GAP", 17, 1, 2)
    assert len(run(tmp_path, "recorder", "--entity", "17").output.splitlines()) == 2
    assert len(run(tmp_path, "recorder", "--last", "1").output.splitlines()) == 1
    assert run(tmp_path, "recorder", "--entity", "99").output == "no match\n"
    create_recorder(tmp_path / "recorder")
    assert len(run(tmp_path, "recorder", "--previous").output.splitlines()) == 3
    (tmp_path / "other").write_bytes(b"x")
    result = run(tmp_path, "recorder", "--file", str(tmp_path / "other"), code=1)
    assert "not a flight recorder" in result.stderr


# --- splitting ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "whole", "expected"),
    [
        ("lines", b"a\n\nb\r\nc", [b"a", b"", b"b\r", b"c"]),
        ("lines", b"a\n", [b"a"]),
        ("lines", b"\n", [b""]),
        ("lines raw", b"a\n\nb\r\nc", [b"a\n", b"\n", b"b\r\n", b"c"]),
        ("lines raw", b"a\n", [b"a\n"]),
        ("lines", b"", []),
        ("none", b"a\nb", [b"a\nb"]),
        ("none", b"", []),
        ("bytes:3", b"abcdefgh", [b"abc", b"def", b"gh"]),
        ("length", b"\x02\0\0\0ab\0\0\0\0\x01\0\0\0c", [b"ab", b"", b"c"]),
    ],
)
def test_splitting_does_not_depend_on_the_chunks(
    how: str, whole: bytes, expected: list[bytes]
) -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        cuts = sorted(random.integers(0, len(whole) + 1, size=3).tolist())
        kind, _, raw = how.partition(" ")
        splitter = splitter_of(kind, keep_newline=raw == "raw")
        found: list[bytes] = []
        for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
            found += splitter.feed(whole[start:end])
        found += splitter.end()
        assert found == expected


@pytest.mark.parametrize("how", ["", "words", "bytes", "bytes:0", "bytes:x", "bytes:-1"])
def test_bad_splits(how: str) -> None:
    with pytest.raises(ConfigError, match="--split"):
        splitter_of(how)


def test_a_torn_length_prefix() -> None:
    splitter = splitter_of("length")
    splitter.feed(b"\x05\0\0\0ab")
    with pytest.raises(ConfigError, match="ends within a message"):
        splitter.end()
    with pytest.raises(ConfigError, match="another format"):
        splitter_of("length").feed(b"some text")


def test_pub_usage(tmp_path: Path) -> None:
    run(tmp_path, "pub", "t", "-", "--message", "x", code=2)
    assert "--split" in run(tmp_path, "pub", "t", "-", "--split", "x", code=1).stderr
    assert "no engine runs" in run(tmp_path, "pub", "t", "-", code=1).stderr
    assert "no engine runs" in run(tmp_path, "sub", "t", code=1).stderr
