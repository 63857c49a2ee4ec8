"""Errors that type checkers find in programs with the client, and the completions of editors."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.project import ROOT
from tests.test_doc_examples import PAGES, blocks

import tidecast
import tidecast.sync
import tidecast.testing
from tidecast.client import aio, blocking
from tidecast.client.consumer import aio as consumer_aio
from tidecast.client.consumer import blocking as consumer_blocking
from tidecast.client.log.blocking import Records

RELAXED = (
    "# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-any-generics, "
    "allow-untyped-decorators, no-warn-return-any\n"
)
"""Examples need no annotations."""
MISTAKES = """
import asyncio

import tidecast
import tidecast.sync
import tidecast.testing


def blocking(link: tidecast.Link) -> None:
    with tidecast.sync.connect() as client:
        client.publish("t", b"x", kye="k")  # wrong
        client.publish("t", b"x", ack="durabel")  # wrong
        client.publish("t", b"x", timeout="1")  # wrong
        client.publish_batch("t", [b"x"], key="k")  # wrong
        client.publish_batch("t", [b"x"], ack="disk")  # wrong
        client.publisher("t", on_full="wait")  # wrong
        client.publisher("t", channel="big")  # wrong
        client.publisher("t", bufer=True)  # wrong
        client.publisher("t").publish(b"x", ack="all")  # wrong
        client.subscribe("t", start="newest")  # wrong
        client.subscribe("t", on_gap="ignore")  # wrong
        client.consumer("t", "s", start="begin")  # wrong
        client.consumer("t", "s", max_deliver="3")  # wrong
        client.consumer("t", "s").run(print, ack="never")  # wrong
        client.consumer("t", "s").run(print, on_error="hope")  # wrong
        client.consumer("t", "s").seek("end")  # wrong
        client.consumer("t", "s").info()["lagg"]  # wrong
        client.request("t", b"x", timeot=1.0)  # wrong
        client.topics.create("t", mode="durably")  # wrong
        client.topics.create("t", queue=3)  # wrong
        client.subscribe("t").next().dat  # wrong
        client.read("t", kyes=["k"])  # wrong
        client.read("t").last_by_key()["k"]  # wrong
        for batch in client.read("t").batches():
            batch.to_record_batch(headers="text")  # wrong
        for message in client.subscribe("t"):
            message.key.decode()  # wrong
        orders = client.topic("t", int)
        orders.publish("five")  # wrong
        orders.publish(5, kye="k")  # wrong
        orders.consumer("s", invalid="skip")  # wrong
        orders.consumer("s", max_delivr=3)  # wrong
        orders.consumer("s").next().value.upper()  # wrong
        orders.subscribe(invalid="nak")  # wrong
        for received in orders.subscribe():
            received.ack()  # wrong
    tidecast.sync.conect()  # wrong
    tidecast.sync.connect("embedded://", mode="inlined")  # wrong
    tidecast.sync.connect("embedded://", topolgy={})  # wrong
    tidecast.testing.connect(durabel=["t"])  # wrong
    tidecast.testing.conect()  # wrong


def app() -> None:
    made = tidecast.App("a")
    made.topic("t", quues=3)  # wrong
    made.topic("t", mode="durably")  # wrong
    made.subscription("t", "s", max_deliver="3")  # wrong
    made.consumer("t", "s", concurency=8)  # wrong


def names(client: tidecast.Client, other: tidecast.sync.Client) -> None:  # wrong
    try:
        pass
    except tidecast.Timout:  # wrong
        pass


async def on_loop() -> None:
    tidecast.connect(tokn="x")  # wrong
    tidecast.connect(codec=5)  # wrong
    async with tidecast.connect() as client:
        await client.publish("t", b"x", kye="k")  # wrong
        await client.publish("t", b"x", ack="durabel")  # wrong
        await client.publish_batch("t", [b"x"], ack="disk")  # wrong
        client.subscribe("t", start="newest")  # wrong
        async with client.consumer("t", "s") as consumer:
            await consumer.run(print, ack="never")  # wrong
            (await consumer.next()).dat  # wrong
        async for record in client.read("t", start="newest"):  # wrong
            record.ack()  # wrong
        numbers = client.topic("t", int)
        await numbers.publish("five")  # wrong
        async with numbers.consumer("s") as typed:
            (await typed.next()).value.upper()  # wrong
            await typed.run(lambda record: record.valu)  # wrong
        (await client.topics.ensure("t", mode="durable")).queue  # wrong
        await client.subscriptions.ensure("t", "s", max_delivr=3)  # wrong


def right(client: tidecast.sync.Connection, start: tidecast.Start) -> tidecast.BatchResult:
    client.publish("t", b"x", key="k", headers={"a": 1}, ack="durable", timeout=1.0)
    client.subscribe("t", start="earliest", on_gap="event")
    client.subscribe("t", start=start)
    client.publisher("t", channel="large", on_full="error").try_publish(b"x")
    tidecast.sync.connect("embedded://", topology={"transports": []}, mode="inline")
    for record in client.read("t", end=tidecast.Time(5), keys=["k", b"l"], codec="json"):
        assert record.offset >= 0
    tidecast.App("a").topic("t", mode="durable", queues=3)
    names = client.topic("t", str)
    names.publish("five", key="k", ack="durable")
    with names.consumer("s", start="latest", invalid="raise") as consumer:
        consumer.run(lambda record: record.value.upper(), on_error="term")
        for delivery in consumer.fetch(10):
            delivery.value.upper()
            delivery.nak(1.0)
    return client.publish_batch("t", [b"x"], keys=["k"], ack="durable")


asyncio.run(on_loop())
"""
OBJECTS = (
    *(aio.Connection, aio.Publisher, aio.Subscription, aio.Responder, consumer_aio.Consumer),
    *(blocking.Connection, blocking.Publisher, blocking.Subscription, blocking.Responder),
    consumer_blocking.Consumer,
)


def as_module(code: str) -> str:
    """A block of a page as a module: with `await` at its top level it is a coroutine function."""
    try:
        compile(code, "block", "exec")
    except SyntaxError:
        return "async def main() -> None:\n" + textwrap.indent(code, "    ")
    return code


def checked(directory: Path) -> dict[str, list[tuple[int, str]]]:
    """The errors of mypy: (line, text) by file name."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")),
            *("--no-error-summary", "--hide-error-context", "--no-pretty"),
            *sorted(str(path) for path in directory.iterdir()),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=600,
        check=False,
    )
    assert not done.stderr, done.stderr
    found: dict[str, list[tuple[int, str]]] = {}
    for line in done.stdout.splitlines():
        match = re.fullmatch(r"(.+?):(\d+): error: (.*)", line)
        if match:
            found.setdefault(Path(match[1]).name, []).append((int(match[2]), match[3]))
    return found


def node() -> str | None:
    """The Node that the page is built with."""
    own = Path(sys.prefix) / "bin/node"
    return shutil.which("node") or (str(own) if own.exists() else None)


WRONG = {n for n, text in enumerate(MISTAKES.split("\n"), 1) if text.endswith("# wrong")}
PYRIGHT = ROOT / "frontend/node_modules/pyright/index.js"


@pytest.mark.skipif(node() is None or not PYRIGHT.exists(), reason="`make dashboard` installs it")
def test_pyright_finds_mistakes(tmp_path: Path) -> None:
    program = tmp_path / "mistakes.py"
    program.write_text(MISTAKES, "utf-8")
    done = subprocess.run(
        [node() or "node", PYRIGHT, "--pythonpath", sys.executable, "--outputjson", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    assert done.stdout, done.stderr
    problems = json.loads(done.stdout)["generalDiagnostics"]
    lines = {each["range"]["start"]["line"] + 1 for each in problems if each["severity"] == "error"}
    assert not WRONG - lines, "pyright does not see these"
    assert not lines - WRONG, "pyright refuses what is right"


@pytest.mark.long
def test_mypy_finds_mistakes_and_accepts_the_examples(tmp_path: Path) -> None:
    (tmp_path / "mistakes.py").write_text(MISTAKES, "utf-8")
    for page in PAGES:
        for line, code in blocks((ROOT / page).read_text("utf-8")):
            name = f"{Path(page).stem.lower()}_{line}.py"
            (tmp_path / name).write_text(RELAXED + as_module(code), "utf-8")
    found = checked(tmp_path)
    lines = {line for line, _ in found.pop("mistakes.py", [])}
    assert len(WRONG) > 40
    assert not WRONG - lines, "mypy does not see these"
    assert not lines - WRONG, "mypy refuses what is right"
    assert not found, "examples"


def test_names_are_loaded_when_first_used_and_are_there() -> None:
    for module in (tidecast, tidecast.sync, tidecast.testing):
        assert len(set(module.__all__)) == len(module.__all__)
        for name in module.__all__:
            assert getattr(module, name) is not None
        assert set(module.__all__) <= set(dir(module))
        with pytest.raises(AttributeError, match="no attribute 'Timout'"):
            _ = module.Timout  # type: ignore[attr-defined]


def imported_for_checkers(path: Path) -> set[str]:
    """The names that a module imports for type checkers alone."""
    tree = ast.parse(path.read_text("utf-8"))
    branch = next(
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    return {
        alias.asname or alias.name
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("name", ["__init__", "sync", "testing/__init__"])
def test_checkers_see_the_names_that_programs_get(name: str) -> None:
    module = {"__init__": tidecast, "sync": tidecast.sync}.get(name, tidecast.testing)
    assert imported_for_checkers(ROOT / f"engine/tidecast/{name}.py") == set(module.__all__)


def types_in(hint: Any) -> Iterator[type]:
    """The classes of a signature."""
    if isinstance(hint, type) and typing.get_origin(hint) is None:
        yield hint
    for each in typing.get_args(hint):
        yield from types_in(each[0] if isinstance(each, list) and each else each)


@pytest.mark.parametrize("kind", OBJECTS, ids=lambda k: f"{k.__module__}.{k.__name__}")
def test_the_types_of_public_signatures_can_be_imported(kind: type) -> None:
    missing = set()
    for name in kind.PUBLIC.split():  # type: ignore[attr-defined]
        found = inspect.getattr_static(kind, name, None)
        function = found.fget if isinstance(found, property) else found
        if not inspect.isfunction(function):
            continue
        names = {**vars(sys.modules[function.__module__]), "threading": threading}
        for hint in typing.get_type_hints(function, names).values():
            missing |= {
                each.__name__
                for each in types_in(hint)
                if each.__module__.startswith("tidecast.")
                and not hasattr(tidecast, each.__name__)
                and not hasattr(tidecast.sync, each.__name__)
            }
    assert not missing


REFERENCE = {
    "Connection": (blocking.Connection, aio.Connection),
    "Publisher": (blocking.Publisher,),
    "Subscription": (blocking.Subscription,),
    "Consumer": (consumer_blocking.Consumer,),
    "Responder and Request": (blocking.Responder, tidecast.Request),
    "Records": (Records,),
    "Batch and Message": (tidecast.Batch, tidecast.Message),
    "Topics": (tidecast.sync.Topics,),
    "DurableMessage": (tidecast.DurableMessage,),
    "DurableBatch": (tidecast.DurableBatch,),
    "LogBatch and LogRecord": (tidecast.LogBatch, tidecast.LogRecord),
    "Subscriptions": (tidecast.sync.Subscriptions,),
    "Typed topics": (
        *(tidecast.sync.Topic, tidecast.sync.TypedConsumer, tidecast.sync.TypedSubscription),
        *(tidecast.TypedRecord, tidecast.TypedMessage),
    ),
}
"""Section of docs/REFERENCE.md -> what it shows."""
INNER = {
    "acked",
    "acknowledge",
    "acks_seen",
    "assembled",
    "codec",
    "consumer",
    "copy_of",
    "count",
    "fields",
    "for_kernel",
    "generation",
    "head",
    "held_back",
    "image",
    "index",
    "lay_out",
    "moved",
    "noted",
    "numbers_of",
    "only",
    "optional",
    "part",
    "parts",
    "position",
    "positions",
    "run_of",
    "runs",
    "start_walk",
    "still_valid",
    "tail",
    "take_acked",
    "taken_back",
    "token",
    "topic_of",
}
"""Of batches: what the client itself uses."""


def public_names(kind: type) -> set[str]:
    """Methods and properties of a class that programs use."""
    if hasattr(kind, "PUBLIC"):
        return set(kind.PUBLIC.split())
    inner = INNER if "Batch" in kind.__name__ else set()
    return {name for name in dir(kind) if not name.startswith("_")} - inner


@pytest.mark.parametrize("section", REFERENCE)
def test_the_reference_has_an_example_of_each_call(section: str) -> None:
    page = (ROOT / "docs/REFERENCE.md").read_text("utf-8")
    parts = re.split(r"^## ", page, flags=re.MULTILINE)
    text = "\n".join(part for part in parts if re.match(rf"{section}(:.*)?\n", part))
    for kind in REFERENCE[section]:
        missing = {n for n in public_names(kind) if not re.search(rf"\.{n}\b", text)}
        assert not missing, f"{kind.__name__}: docs/REFERENCE.md, section {section}"


def test_completion_shows_what_programs_use() -> None:
    class Mine(blocking.Connection):
        def greet(self) -> None: ...

    with tidecast.testing.connect(durable=["d"]) as client:
        opened = (
            client,
            client.publisher("t"),
            client.subscribe("t"),
            client.consumer("d", "s"),
            client.responder("q"),
        )
        for each in (*opened, client.topics, client.subscriptions):
            shown = dir(each)
            assert shown == sorted(each.PUBLIC.split())
            for name in shown:
                assert hasattr(type(each), name) or name in vars(each), name
        assert {"publish", "subscribe", "topics"} <= set(dir(client))
        assert not {"bell", "pump", "abandon", "rung", "event_flow"} & set(dir(client))
        for found in (client.topics, client.subscriptions):
            calls = {name for name in vars(type(found)) if not name.startswith("_")}
            assert set(dir(found)) == calls - {"PUBLIC"}
        mine = Mine(client.link)
        assert "greet" in dir(mine)
        mine.abandon()


def test_the_mapping_of_a_consumer_has_the_fields_of_its_subscription() -> None:
    assert set(tidecast.ConsumerInfo.__annotations__) == set(
        tidecast.SubscriptionInfo.__struct_fields__
    )
    with tidecast.testing.connect() as client:
        client.topics.ensure("orders", mode="durable")
        one = client.consumer("orders", "s")
        assert set(one.info()) - set(tidecast.ConsumerInfo.__annotations__) <= {"lanes"}
        assert msgspec.convert(one.info(), tidecast.SubscriptionInfo).name == "s"
