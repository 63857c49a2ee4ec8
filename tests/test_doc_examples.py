"""Every ```python block of these pages runs, against an engine of its own."""

from __future__ import annotations

import ast
import asyncio
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from tests.project import ROOT
from tests.support.postgres import postgres_server
from tidecast.config.topology import topology_from
from tidecast.engine.process import Engine

PAGES = (
    "README.md",
    "docs/QUICKSTART.md",
    "docs/COMING_FROM.md",
    "docs/CLIENT.md",
    "docs/DURABLE.md",
    "docs/CONSUMING.md",
    "docs/APPS.md",
    "docs/TESTING.md",
)
CREATING = ("docs/TUTORIAL.md", "docs/COOKBOOK.md", "docs/REFERENCE.md")
"""Pages whose programs create their topics; a recipe with Postgres reads DATABASE_URL."""
DURABLE = ("invoices", "payments", "parcels", "orders", "orders.failed")
"""Durable topics that the examples presume."""


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """(line, code) of each python block."""
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "fence" and token.info.strip().split(" ")[0] in ("python", "py"):
            yield (token.map or [0])[0] + 2, token.content


def run_block(code: str, path: str = "block", line: int = 1) -> dict[str, Any]:
    """Run one block, with `await` at its top level if it has one. Its names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    padded = "\n" * (line - 1) + textwrap.dedent(code)
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    compiled = compile(padded, str(ROOT / path), "exec", flags=flags, dont_inherit=True)
    if compiled.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(compiled, names))
    else:
        exec(compiled, names)
    return names


EXAMPLES = [
    pytest.param(path, line, code, id=f"{path}:{line}")
    for path in (*PAGES, *CREATING)
    for line, code in blocks((ROOT / path).read_text("utf-8"))
    if "def test_" not in code  # pytest runs these: tests/unit/test_testing.py
]


@pytest.fixture
def engine_dir(path: str, tmp_path: Path) -> Iterator[Path]:
    """The data directory of a running engine. Shared memory only: the network stays alone."""
    data_dir = tmp_path / "engine"
    names = () if path in CREATING else DURABLE
    topics = [{"name": name, "mode": "durable"} for name in names]
    topology = topology_from({"transports": [{"name": "ipc", "kind": "ipc"}], "topics": topics})
    engine = Engine(data_dir, topology)
    engine.start()
    try:
        yield data_dir
    finally:
        engine.stop()


@pytest.fixture(scope="module")
def database_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Postgres for the blocks that use one; each has tables of its own."""
    settings = {"fsync": "off", "synchronous_commit": "off"}
    with postgres_server(tmp_path_factory.mktemp("postgres"), settings) as server:
        yield server.url_of("postgres")


@pytest.mark.parametrize(("path", "line", "code"), EXAMPLES)
def test_example(
    path: str,
    line: int,
    code: str,
    engine_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("TIDECAST_DATA_DIR", str(engine_dir))
    if "DATABASE_URL" in code:
        monkeypatch.setenv("DATABASE_URL", request.getfixturevalue("database_url"))
    run_block(code, path, line)


def test_there_are_examples() -> None:
    for page in (*PAGES, *CREATING):
        assert any(example.values[0] == page for example in EXAMPLES), page


def test_blocks_are_found_and_run() -> None:
    text = "# x\n\n```python\na = 1\n```\n\n```bash\nls\n```\n\n```python\nassert a == 2\n```\n"
    found = list(blocks(text))
    assert found == [(4, "a = 1\n"), (12, "assert a == 2\n")]
    assert run_block(found[0][1])["a"] == 1
    with pytest.raises(AssertionError):
        run_block("a = 1\nassert a == 2\n")


def test_awaiting_blocks_are_awaited() -> None:
    names = run_block("import asyncio\nawait asyncio.sleep(0)\ndone = True\n")
    assert names["done"]
    with pytest.raises(ZeroDivisionError):
        run_block("import asyncio\nawait asyncio.sleep(0)\n1 / 0\n")
