"""A whole platform (Postgres, control service, engine) and a real browser on its page."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Locator,
    Page,
    WebSocket,
    expect,
    sync_playwright,
)

from tests.project import ROOT
from tests.support import patience

WAIT_MS = 60_000
"""A net under what hangs, not a claim about speed."""
expect.set_options(timeout=WAIT_MS)

PASSWORD = "correct horse battery"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--process-per-site",  # the next test's page finds its scripts compiled
]
BUILT = ROOT / "backend/tidecast_control/static/index.html"


@dataclass
class Platform:
    """A running platform."""

    url: str
    password: str
    """The admin's: the one printed at first, until somebody has chosen another."""
    data_dir: Path
    output: str


def _tidecast(*arguments: str, **env: str) -> str:
    command = [sys.executable, "-m", "tidecast.cli", *arguments]
    code, text = patience.run(command, 110, env={**os.environ, **env})
    assert code == 0, text
    return text


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    if not BUILT.is_file():
        subprocess.run(["make", "dashboard"], cwd=ROOT, check=True, timeout=300)
    data_dir = tmp_path_factory.mktemp("platform")
    told = _tidecast(
        "up",
        "--detach",
        "--port",
        "0",
        "--data-dir",
        str(data_dir),
        TIDECAST_CONTROL_ALLOW_FAULTS="true",
    )
    try:
        url = re.search(r"control service: (\S+)", told)
        password = re.search(r"with password (\S+)", told)
        assert url, told
        assert password, told
        yield Platform(url.group(1), password.group(1), data_dir, told)
    finally:
        _tidecast("down", "--data-dir", str(data_dir))


# Playwright's loop runs in this thread while a browser is open, and no other test could start one
# of its own: the browser ends with these tests.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("no chromium: .ci/run installs it")
        pytest.skip("no chromium on this machine (Debian and Ubuntu: apt-get install chromium)")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield chromium
        chromium.close()


def sign_in(page: Page, url: str, user: str, password: str) -> None:
    """Fill in the form of the login page."""
    page.goto(url + "/login")
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


@pytest.fixture(scope="module")
def admin(platform: Platform, browser: Browser) -> Iterator[BrowserContext]:
    """A browser that has gone through the first run as admin."""
    context = browser.new_context(
        viewport={"width": 1440, "height": 900},
        color_scheme="dark",
        reduced_motion="reduce",
    )
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    sign_in(page, platform.url, "admin", platform.password)
    if platform.password != PASSWORD:
        page.get_by_role("heading", name="Choose a password").wait_for()
        page.get_by_label("New password").fill(PASSWORD)
        page.get_by_label("Once more").fill(PASSWORD)
        page.get_by_role("button", name="Set the password").click()
        platform.password = PASSWORD
    page.get_by_role("heading", name="Overview", level=1).wait_for()
    page.goto(platform.url + "/health/live")  # it stays, so that its process does
    yield context
    context.close()


class Api:
    """The admin's requests, with the browser's cookie."""

    def __init__(self, admin: BrowserContext, url: str) -> None:
        self._request, self._base = admin.request, url + "/api/v1"
        token = self._request.get(self._base + "/auth/me").json()["csrf_token"]
        self._headers = {"X-CSRF-Token": token}

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One request; its answer. Fails on a refusal."""
        answer = self._request.fetch(
            self._base + path, method=method, headers=self._headers, data=body
        )
        assert answer.ok, f"{method} {path}: {answer.status} {answer.text()}"
        return answer.json() if answer.status != HTTPStatus.NO_CONTENT else None

    def topic(self, name: str, **spec: Any) -> Any:
        """A topic with the given settings."""
        return self.ask("PUT", f"/topics/{name}", {"spec": spec})

    def settled(self, path: str) -> bool:
        """Every engine has what is wanted."""
        status = self.ask("GET", path)["status"]
        return not status["drift"] and status["observed_generation"] > 0


@pytest.fixture(scope="module")
def api(admin: BrowserContext, platform: Platform) -> Api:
    """Requests by which a test prepares its resources without the page."""
    return Api(admin, platform.url)


def names_of_nodes(api: Api) -> set[str]:
    """All that the service knows."""
    return {node["metadata"]["name"] for node in api.ask("GET", "/nodes")["items"]}


@contextlib.contextmanager
def another_engine(
    platform: Platform, api: Api, name: str, topology: str | None = None, *options: str
) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """One more engine that the same service manages: its data directory, and its process.

    ``options``: of its command.
    """
    data_dir = Path(tempfile.mkdtemp(prefix="tc-"))
    if topology is not None:
        (data_dir / "topology.yaml").write_text(topology)
    before = names_of_nodes(api)
    token = api.ask("POST", "/enrolments", {"name": name})["token"]
    command = [sys.executable, "-m", "tidecast.cli", "engine", "--data-dir", str(data_dir)]
    log = (data_dir / "engine.log").open("w+")
    engine = subprocess.Popen(
        [*command, "--control", platform.url, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env={**os.environ, "TIDECAST_ENROL_TOKEN": token},
    )
    try:
        assert engine.stdout is not None
        line = engine.stdout.readline()
        assert "ready in" in line, line + Path(log.name).read_text()
        yield data_dir, engine
    finally:
        engine.terminate()
        engine.wait(30)
        log.close()
        for gone in names_of_nodes(api) - before:  # the platform is that of all modules
            api.ask("DELETE", f"/nodes/{gone}")
        shutil.rmtree(data_dir, ignore_errors=True)


@pytest.fixture(scope="module")
def second(platform: Platform, api: Api) -> Iterator[Path]:
    """The data directory of a second engine, which the same service manages."""
    with another_engine(platform, api, "second") as (data_dir, _):
        yield data_dir


@pytest.fixture
def page(admin: BrowserContext) -> Iterator[Page]:
    """An empty page of the admin: the test goes where it begins (see `home`)."""
    page = admin.new_page()
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    yield page
    page.close()
    assert not failures, failures


@pytest.fixture
def home(page: Page, platform: Platform) -> Page:
    """The page is at the overview, with live figures."""
    page.goto(platform.url + "/")
    page.get_by_test_id("live-badge").get_by_text("Live", exact=True).wait_for()
    return page


class LiveFrames:
    """The frames with live figures that a page receives, at most four a second.

    Made before the page is opened or loaded again.
    """

    def __init__(self, page: Page) -> None:
        self.urls: list[str] = []
        """Of the sockets that were opened."""
        self._page, self._sockets = page, list[WebSocket]()
        page.on("websocket", self._opened)

    def _opened(self, socket: WebSocket) -> None:
        self.urls.append(socket.url)
        self._sockets.append(socket)

    def wait(self, frames: int) -> None:
        """Until so many more have come. A page that was just opened may have no socket yet."""
        if not self._sockets:
            self._page.wait_for_event("websocket", timeout=WAIT_MS)
        number = itertools.count(1)
        self._sockets[-1].wait_for_event(
            "framereceived", lambda _: next(number) >= frames, timeout=WAIT_MS + 1_000 * frames
        )


def figure(page: Page, label: str) -> Locator:
    """The figure under a label: `Lag` -> `1.2k msg`."""
    return page.locator("main").get_by_test_id(f"stat-{label}")


def create_subscription(
    page: Page, platform: Platform, topic: str, name: str, dead_letters: str = ""
) -> None:
    page.goto(platform.url + "/subscriptions")
    page.get_by_role("button", name="Create subscription").first.click()
    form = page.get_by_role("dialog")
    form.get_by_label("Name", exact=True).fill(name)
    form.get_by_label("Topic", exact=True).fill(topic)
    form.get_by_label("Dead letters to").fill(dead_letters)
    form.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()
