"""The documentation site builds strictly: every page in its place, every link and anchor there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.project import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None:
        if os.environ.get("CI"):
            pytest.fail("no mkdocs: make docs installs it")
        pytest.skip("no mkdocs: make docs installs it")
    directory = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


class _Links(HTMLParser):
    """The links of a page, and the anchors in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids.add(found.get("id") or "")
        for name in ("href", "src"):
            self.targets.append(found.get(name) or "")


def test_every_link_leads_somewhere(site: Path) -> None:
    """In the built pages, those made from docstrings, commands and OpenAPI included."""
    pages = {path: _Links(path.read_text("utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 25
    wrong = []
    for path, links in pages.items():
        for target in links.targets:
            if not target or target.startswith(("data:", "mailto:")) or path.name == "404.html":
                continue
            if "//" in target:
                continue
            name, _, anchor = target.partition("#")
            there = (path.parent / unquote(name)).resolve() if name else path
            if there.is_dir():
                there = there / "index.html"
            if not there.is_file():
                wrong.append(f"{path.relative_to(site)}: {target}")
            elif anchor and there in pages and unquote(anchor) not in pages[there].ids:
                wrong.append(f"{path.relative_to(site)}: {target}: no such place")
    assert not wrong, "\n".join(wrong[:40])


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """Fonts, styles and scripts of every page are the site's own."""
    for path in site.rglob("*.html"):
        for line in path.read_text("utf-8").split("<"):
            if line.startswith(("script", 'link rel="stylesheet"', "img")):
                assert 'src="http' not in line, f"{path.name}: {line}"
                assert 'href="http' not in line, f"{path.name}: {line}"


def test_reference_has_commands_paths_and_classes(site: Path) -> None:
    def text(name: str) -> str:
        return (site / "reference" / name).read_text("utf-8")

    assert "tidecast subscription redrive" in text("cli.html")
    assert "POST /api/v1/apply" in text("rest.html")
    assert "publish_batch" in text("python-sync.html")
    assert "BackPressure" in text("python-types.html")
