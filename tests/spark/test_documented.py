"""docs/SPARK.md names every option that there is, and no other."""

from __future__ import annotations

import re

from tests.project import ROOT

from tidecast_spark.options import SINK_OPTIONS, SOURCE_OPTIONS


def test_every_option_is_documented() -> None:
    page = (ROOT / "docs" / "SPARK.md").read_text()
    source, sink = page.split("## Write")
    for text, options in ((source, SOURCE_OPTIONS), (sink, SINK_OPTIONS)):
        rows = re.findall(r"^\| (`[^|]*`) \|", text.partition("| option |")[2], re.MULTILINE)
        named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
        assert named == set(options) - {"pushFilters"}
    assert "`pushFilters=true`" in page
