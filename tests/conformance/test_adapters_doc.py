"""The example of docs/ADAPTERS.md is a complete adapter: it passes the suite as it stands there."""

from __future__ import annotations

from typing import Any

from tests.project import ROOT
from tests.test_doc_examples import blocks


def test_the_example_conforms() -> None:
    line, code = next(iter(blocks((ROOT / "docs/ADAPTERS.md").read_text("utf-8"))))
    names: dict[str, Any] = {}
    exec(compile("\n" * (line - 1) + code, "docs/ADAPTERS.md", "exec"), names)
    assert names["ListAdapter"]([]).queues == 0
