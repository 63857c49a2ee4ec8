"""The way to open a publication or a subscription passes the files that ARCHITECTURE names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from tests.test_architecture_doc import PAGE, files_of_opening

import tidecast
import tidecast.sync

ROOT = f"{Path(tidecast.__file__).parent}/"
LEGS = ("Opening a publication", "Opening a durable", "Opening a subscription", "On the way")
OF_THE_WAY = ("client/", "node/", "embedded.py")
UNREACHED = {
    "client/links/socket.py",  # the engine is another process then
    "engine/admission.py",
    "node/live/images.py",  # no other node publishes
}


@contextmanager
def passed_files() -> Iterator[set[str]]:
    """Files of the engine whose functions run in this thread."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(ROOT):
            seen.add(file.removeprefix(ROOT))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(before)


Open = Callable[[tidecast.sync.Connection], object]
KINDS: dict[str, Open] = {
    "live": lambda client: client.publisher("live"),
    "durable": lambda client: client.publisher("stored"),
    "subscription": lambda client: client.subscribe("live"),
}


@pytest.fixture(scope="module")
def client() -> Iterator[tidecast.sync.Connection]:
    with tidecast.sync.connect("embedded://") as connection:
        connection.topics.create("live", mode="live")
        connection.topics.create("stored", mode="durable")
        yield connection


@pytest.fixture(scope="module")
def passed(client: tidecast.sync.Connection) -> dict[str, set[str]]:
    found = {}
    for opened in KINDS.values():
        opened(client)  # what is made once a process is there from now on
    for kind, opened in KINDS.items():
        with passed_files() as seen:
            opened(client)
        found[kind] = {path for path in seen if path.startswith(OF_THE_WAY)}
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_is_passed_that_the_page_does_not_name(
    kind: str, passed: dict[str, set[str]]
) -> None:
    assert passed[kind] - files_of_opening(PAGE.read_text("utf-8"), LEGS) == set()


def test_every_file_that_the_page_names_is_passed(passed: dict[str, set[str]]) -> None:
    named = files_of_opening(PAGE.read_text("utf-8"), LEGS)
    assert named - set().union(*passed.values()) == UNREACHED


def test_a_live_publication_passes_nothing_of_durable_ones(passed: dict[str, set[str]]) -> None:
    assert not {path for path in passed["live"] if path.startswith("node/durable/")}
