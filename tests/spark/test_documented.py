"""docs/SPARK.md names every option that there is, and no other."""

from __future__ import annotations

import re

from tests.project import ROOT

from tidecast_spark.jobs.rollup_store import COLUMNS
from tidecast_spark.options import SINK_OPTIONS, SOURCE_OPTIONS


def _table(text: str, head: str) -> str:
    """The rows of all tables with that first column."""
    return "".join(part.partition("\n\n")[0] for part in text.split(f"| {head} |")[1:])


def test_every_option_is_documented() -> None:
    page = (ROOT / "docs" / "SPARK.md").read_text()
    source, sink = page.split("## Write")
    for text, options in ((source, SOURCE_OPTIONS), (sink, SINK_OPTIONS)):
        rows = re.findall(r"^\| (`[^|]*`) \|", _table(text, "option"), re.MULTILINE)
        named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
        assert named == set(options) - {"pushFilters"}
    assert "`pushFilters=true`" in page


def test_the_tables_for_the_history_are_documented() -> None:
    page = (ROOT / "docs" / "SPARK.md").read_text()
    table = page.partition("### Rollup")[2].partition("| `at` | timestamptz")[2]
    table = table.partition("\n\n")[0]
    found: dict[str, str] = {}
    for names, kind in re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", table, re.MULTILINE):
        found |= dict.fromkeys(re.findall(r"`(\w+)`", names), kind)
    assert found == COLUMNS
