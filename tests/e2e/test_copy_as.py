"""`Copy as` beside each action: what it gives as curl, as a command and as Python does the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import Eventually
from tests.e2e.conftest import Api, Platform
from tests.e2e.traffic import publishing, refusing
from tests.project import ROOT
from tidecast_control.db import Database
from tidecast_control.kit.models import utc_now
from tidecast_control.pipelines.models import PipelineRunRow
from tidecast_control.postgres import EmbeddedPostgres

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
WAYS = ("curl", "tidecast", "Python")
COMMAND_S = 60.0
SECRET = "correct horse battery"
ANEW = "copied-anew"
"""Of what no second may be made: each way makes one of its own."""
DUE = '"2030-01-01T00:00:00.000Z"'
ADVICE = {
    "topic": "copied",
    "peak_messages_per_s": 10,
    "peak_bytes_per_s": 1000,
    "spec": {"history_bytes": 2 << 20},
    "reasons": ["it is small"],
}


@dataclass(frozen=True)
class Action:
    """Something the page does."""

    name: str
    path: str
    """The page that it stands on."""
    opened: Callable[[Page], Locator]
    """Does what has to be done before; in what it returns stands one `Copy as`."""
    prepared: Callable[[Api], object] = lambda api: None
    """How it has to be each time before it is done."""
    done: Callable[[Api], bool] = field(default=lambda api: True)
    """Whether it shows."""


def _dialog(button: str, **filled: str) -> Callable[[Page], Locator]:
    """A dialog behind a button, with its fields filled in."""

    def opened(page: Page) -> Locator:
        page.get_by_role("main").get_by_role("button", name=button).first.click()
        return _filled(page.get_by_role("dialog"), **filled)

    return opened


def _filled(dialog: Locator, **filled: str) -> Locator:
    for label, value in filled.items():
        dialog.get_by_label(label.replace("_", " "), exact=True).fill(value)
    return dialog


def _row(text: str, button: str = "") -> Callable[[Page], Locator]:
    """A row of a table, or the dialog behind one of its buttons."""

    def opened(page: Page) -> Locator:
        row = page.get_by_role("row", name=re.compile(text)).first
        if not button:
            return row
        row.get_by_role("button", name=button).click()
        return page.get_by_role("dialog")

    return opened


def _deleting(opened: Callable[[Page], Locator]) -> Callable[[Page], Locator]:
    """The question behind `Delete` in an editor."""

    def asked(page: Page) -> Locator:
        opened(page).get_by_role("button", name="Delete").click()
        return page.get_by_role("dialog", name=re.compile("^Delete "))

    return asked


def _clicked_row(text: str) -> Callable[[Page], Locator]:
    def opened(page: Page) -> Locator:
        page.get_by_role("row", name=re.compile(text)).get_by_role("cell").first.click()
        return page.get_by_role("dialog")

    return opened


def _region(label: str) -> Callable[[Page], Locator]:
    return lambda page: page.get_by_label(label, exact=True)


def _none(path: str) -> Callable[[Api], None]:
    """It is not there."""

    def gone(api: Api) -> None:
        if _is(path)(api):
            api.ask("DELETE", path)

    return gone


def _is(path: str, wanted: dict[str, Any] | None = None) -> Callable[[Api], bool]:
    """It is there, and says so."""

    def there(api: Api) -> bool:
        kind, _, name = path.rpartition("/")
        answer = api.ask("GET", f"{kind}?limit=500" if kind != "/users" else kind)
        found = [one for one in answer["items"] if (one.get("metadata") or one)["name"] == name]
        if not found:
            return False
        one = found[0] | found[0].get("metadata", {}) | found[0].get("spec", {})
        return all(one[key] == value for key, value in (wanted or {}).items())

    return there


def _is_not(path: str) -> Callable[[Api], bool]:
    return lambda api: not _is(path)(api)


def _put(path: str, **spec: Any) -> Callable[[Api], object]:
    return lambda api: api.ask("PUT", path, {"spec": spec})


def _patch(path: str, **spec: Any) -> Callable[[Api], object]:
    return lambda api: api.ask("PATCH", path, {"spec": spec})


def _ask(method: str, path: str) -> Callable[[Api], Any]:
    return lambda api: api.ask(method, path)


def _creating(
    name: str,
    path: str,
    at: str,
    opened: Callable[[Page], Locator],
    wanted: dict[str, Any] | None = None,
) -> Action:
    """Something is made at ``at``, where nothing was."""
    return Action(name, path, opened, _none(at), _is(at, wanted))


def _ending(
    name: str, path: str, at: str, opened: Callable[[Page], Locator], **spec: Any
) -> Action:
    """An action that deletes the resource at ``at``."""
    return Action(name, path, opened, _put(at, **spec), _is_not(at))


RULE: dict[str, Any] = {"metric": "lag_s", "target": ">", "threshold": 1e6, "for_s": 5}
SILENCE: dict[str, Any] = {"rule": "", "target": "x", "until": DUE.strip('"')}
MIRROR: dict[str, Any] = {
    "topic": "copied",
    "servers": "127.0.0.1:1",
    "kafka_topic": "copied",
    "paused": True,
}
POLICY: dict[str, Any] = {"pattern": "nothing.*", "rate_packets_per_s": 5}
YAML = 'kind: topic\nmetadata: {name: copied.yaml, description: "it\'s $HOME"}\n'


def _topics() -> Iterator[Action]:
    yield Action(
        "example traffic",
        "/",
        lambda page: page.get_by_role("main"),
        _ask("POST", "/traffic/example/start"),
        _is("/traffic/example", {"running": False}),
    )
    yield _creating(
        "create a topic",
        "/topics?create=true",
        "/topics/copied.new",
        lambda page: _filled(
            page.get_by_role("dialog"), Name="copied.new", Description='it\'s "$HOME" `here`'
        ),
        {"description": 'it\'s "$HOME" `here`'},
    )
    yield Action(
        "limits of a topic",
        "/topics/copied",
        _limited,
        _patch("/topics/copied", rate_packets_per_s=7),
        _is("/topics/copied", {"rate_packets_per_s": 900}),
    )
    yield Action("history", "/topics/copied", _region("History"))
    yield Action(
        "pause a topic",
        "/topics/copied?tab=danger",
        lambda page: page.get_by_role("listitem").filter(has_text="Pause deliveries"),
    )
    yield Action("purge", "/topics/copied.purged?tab=danger", _dialog("Purge"))
    yield _ending(
        "delete a topic", "/topics/copied.gone?tab=danger", "/topics/copied.gone", _dialog("Delete")
    )
    yield Action(
        "publish",
        "/messages?topic=copied&view=publish",
        lambda page: _filled(
            page.get_by_label("Publish a message"), Key="it's", Headers="a: 1\nb: two words"
        ),
    )
    yield Action(
        "browse",
        "/messages?topic=copied&view=browse&from=earliest",
        lambda page: page.get_by_role("main"),
    )
    yield Action(
        "list scheduled messages",
        "/messages?topic=copied&view=scheduled",
        lambda page: page.get_by_role("main"),
    )
    yield _creating("apply YAML", "/", "/topics/copied.yaml", _yaml, {"description": "it's $HOME"})
    yield Action("export", "/", _export)


def _limited(page: Page) -> Locator:
    typed = page.get_by_label("Packets/s, as text")
    typed.fill("900")
    typed.press("Enter")
    card = page.get_by_label("Rate limits", exact=True)
    expect(card.get_by_text("applied", exact=True)).to_be_visible()
    return card


def _yaml(page: Page) -> Locator:
    expect(page.get_by_role("heading", name="Overview", level=1)).to_be_visible()
    page.keyboard.press("y")
    return _filled(page.get_by_role("dialog", name="YAML"), Documents=YAML)


def _export(page: Page) -> Locator:
    expect(page.get_by_role("heading", name="Overview", level=1)).to_be_visible()
    page.keyboard.press("y")
    dialog = page.get_by_role("dialog", name="YAML")
    dialog.get_by_role("tab", name="Export").click()
    return dialog.get_by_role("tabpanel")


def _subscriptions() -> Iterator[Action]:
    at = "/subscriptions/copier"
    yield _creating(
        "create a subscription",
        "/subscriptions",
        "/subscriptions/copied-new",
        _dialog("Create subscription", Name="copied-new", Topic="copied"),
    )
    yield Action(
        "pause",
        at,
        lambda page: page.get_by_role("main").locator("header").first,
        _patch(at, paused=False),
        _is(at, {"paused": True}),
    )
    yield Action("reset the position", at, _dialog("Reset position"))
    yield Action("re-drive", at, _dialog("Dead letters", To_topic="copied.to"))
    yield Action(
        "edit",
        at,
        _dialog("Edit", **{"Ack wait (seconds)": "31"}),
        _patch(at, ack_wait_s=40),
        _is(at, {"ack_wait_s": 31}),
    )
    yield _ending(
        "delete a subscription",
        "/subscriptions/copied-gone",
        "/subscriptions/copied-gone",
        _dialog("Delete"),
        topic="copied",
    )


def _rules() -> Iterator[Action]:
    yield _creating(
        "create a policy",
        "/limits",
        "/rate-limits/copied-new",
        _dialog("Create policy", Name="copied-new", Topics="nothing.*", **{"Packets/s": "5k"}),
        {"rate_packets_per_s": 5000},
    )
    yield _ending(
        "delete a policy",
        "/limits",
        "/rate-limits/copied-policy",
        _deleting(_clicked_row("copied-policy")),
        **POLICY,
    )
    yield _creating(
        "create a rule",
        "/alerts?tab=rules",
        "/alert-rules/copied-new",
        _dialog("Create rule", Name="copied-new", Target="copied"),
    )
    yield Action(
        "switch a rule off",
        "/alerts?tab=rules",
        _row("copied-rule"),
        _patch("/alert-rules/copied-rule", enabled=True),
        _is("/alert-rules/copied-rule", {"enabled": False}),
    )
    yield _ending(
        "delete a rule",
        "/alerts?tab=rules",
        "/alert-rules/copied-gone",
        _deleting(_row("copied-gone", "Edit copied-gone")),
        **RULE,
    )
    yield _ending(
        "end a silence",
        "/alerts?tab=silences",
        "/silences/copied-silence",
        _row("to be ended"),
        **SILENCE,
        reason="to be ended",
    )
    yield Action(
        "stop loss",
        "/reliability",
        _region("Fault injection"),
        _put("/faults/multicast", drop=0.02, seed=1, expires_s=300),
        _is_not("/faults/multicast"),
    )
    yield _creating(
        "inject loss",
        "/reliability",
        "/faults/multicast",
        lambda page: page.get_by_label("Fault injection").locator("form"),
        {"drop": 0.01},
    )
    yield Action(
        "allow faults",
        "/reliability",
        _region("Fault injection"),
        _patch("/transports/multicast", allow_faults=False),
        _is("/transports/multicast", {"allow_faults": True}),
    )


def _pipelines() -> Iterator[Action]:
    yield _creating(
        "create a pipeline",
        "/pipelines",
        "/pipelines/copied-new",
        _dialog("Create pipeline", Name="copied-new", Topic="copied"),
    )
    yield Action(
        "what is recommended",
        "/pipelines",
        _row("copied.*messages", "Preview the recommendation for copied"),
        _patch("/topics/copied", history_bytes=4 << 20),
        _is("/topics/copied", {"history_bytes": 2 << 20}),
    )
    yield Action(
        "start a pipeline",
        "/pipelines",
        _row("copied-run"),
        _stopped,
        lambda api: api.ask("GET", "/pipelines/copied-run")["status"]["last_run"] is not None,
    )


def _mirrors() -> Iterator[Action]:
    at = "/mirrors/copied-mirror"
    yield _creating(
        "create a mirror",
        "/mirrors",
        "/mirrors/copied-new",
        _dialog(
            "Create mirror",
            Name="copied-new",
            Topic="copied",
            Servers="127.0.0.1:1",
            Kafka_topic="copied-new",
        ),
    )
    yield _ending(
        "delete a mirror",
        "/mirrors",
        "/mirrors/copied-new",
        _deleting(_row("copied-new", "Edit copied-new")),
        **MIRROR,
    )
    yield Action(
        "show a mirror", "/mirrors?name=copied-mirror", _region("Progress of copied-mirror")
    )
    yield Action(
        "resume a mirror",
        "/mirrors",
        _row("copied-mirror"),
        _patch(at, paused=True),
        _is(at, {"paused": False}),
    )


def _stopped(api: Api) -> None:
    """It is there again, and does not run."""
    path, ended = "/pipelines/copied-run", threading.Event()
    if _is(path)(api):
        if api.ask("GET", path)["status"]["state"] != "idle":
            api.ask("POST", f"{path}/stop")
        while api.ask("GET", path)["status"]["state"] != "idle":
            ended.wait(0.1)
        api.ask("DELETE", path)
    _put(path, job="archive", topic="copied")(api)


def _people() -> Iterator[Action]:
    yield Action(
        "create a key",
        "/access",
        _dialog("Create key", Name=ANEW, Topic_pattern="copied"),
    )
    yield Action(
        "add a user",
        "/access?tab=users",
        _dialog("Add user", User="copied", First_password=SECRET),
        done=_is("/users/copied", {"role": "viewer"}),
    )
    yield Action("add a node", "/nodes", _dialog("Add a node", Name_of_the_token=ANEW))
    yield Action("list moves", "/cluster", _region("Moves"))
    yield Action("drain", "/cluster", _dialog("Drain"), _with_drained(False), _drained_is(True))
    yield Action("undrain", "/cluster", _dialog("Undrain"), _with_drained(True), _drained_is(False))
    yield Action("quarantine", "/nodes", _quarantine, _unquarantined, _quarantined)  # the last


def _quarantine(page: Page) -> Locator:
    page.get_by_role("main").get_by_role("button", name=re.compile("Details|Show")).first.click()
    return page.get_by_role("dialog").locator("footer")


def _unquarantined(api: Api) -> None:
    for node in api.ask("GET", "/nodes")["items"]:
        api.ask("PATCH", f"/nodes/{node['metadata']['name']}", {"spec": {"quarantined": False}})


def _with_drained(drained: bool) -> Callable[[Api], None]:
    def prepared(api: Api) -> None:
        for node in api.ask("GET", "/nodes")["items"]:
            api.ask("PATCH", f"/nodes/{node['metadata']['name']}", {"spec": {"drained": drained}})

    return prepared


def _drained_is(drained: bool) -> Callable[[Api], bool]:
    return lambda api: all(
        node["spec"]["drained"] is drained for node in api.ask("GET", "/nodes")["items"]
    )


def _quarantined(api: Api) -> bool:
    return any(node["spec"]["quarantined"] for node in api.ask("GET", "/nodes")["items"])


def _there_before(api: Api, platform: Platform) -> None:
    """Create the resources that the actions change."""
    for name in ("copied", "copied.dead", "copied.to", "copied.purged"):
        api.topic(name, mode="durable")
    _put("/subscriptions/copier", topic="copied", dead_letter="copied.dead")(api)
    _put("/rate-limits/copied-policy", **POLICY)(api)
    _put("/alert-rules/copied-rule", **RULE)(api)
    _put("/mirrors/copied-mirror", **MIRROR)(api)
    with Database(EmbeddedPostgres(platform.data_dir / "postgres").url).begin() as session:
        session.add(
            PipelineRunRow(
                id="copied",
                pipeline="capacity",
                job="capacity",
                trigger="user",
                state="done",
                finished_at=utc_now(),
                report={"advice": [ADVICE]},
            )
        )
    _patch("/transports/multicast", allow_faults=True)(api)


PARTS = (_topics, _subscriptions, _rules, _pipelines, _mirrors, _people)


@pytest.mark.parametrize("part", PARTS)
def test_what_is_copied_does_the_same(
    part: Callable[[], Iterator[Action]],
    page: Page,
    platform: Platform,
    api: Api,
    tmp_path: Path,
    eventually: Eventually,
) -> None:
    if not _is("/subscriptions/copier")(api):
        _there_before(api, platform)
        copier = _ask("GET", "/subscriptions/copier")
        with (
            publishing(platform.data_dir, "copied", 50),
            refusing(platform.data_dir, "copied", "copier"),
        ):
            eventually(
                lambda: int(copier(api)["status"]["dead_letters"] or 0) > 5,
                "dead letters",
                timeout_s=20,
            )
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=platform.url)
    key = {"name": f"copies{part.__name__}".replace("_", "-"), "role": "admin"}
    environment = {
        **os.environ,
        "TIDECAST_KEY": api.ask("POST", "/keys", key)["secret"],
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    failures = []
    for action in part():
        action.prepared(api)
        page.goto(platform.url + action.path)
        for way, copied in _copied(page, action.opened(page)).items():
            action.prepared(api)
            text = copied.replace(ANEW, f"copied-{way.lower()}")
            wrong = _wrong(way, text, environment, tmp_path)
            if wrong is None and not action.done(api):
                wrong = "it changed nothing"
            if wrong:
                failures.append(f"{action.name}, {way}: {wrong}\n{text}")
        action.prepared(api)
    assert not failures, "\n\n".join(failures)


def _copied(page: Page, place: Locator) -> dict[str, str]:
    """Way -> what was copied."""
    texts = {}
    for way in WAYS:
        place.get_by_role("button", name="Copy as").first.click()
        page.get_by_role("menuitem", name=way, exact=True).click()
        expect(page.get_by_role("menu")).to_have_count(0)
        texts[way] = page.evaluate("navigator.clipboard.readText()")
    assert len(set(texts.values())) == len(WAYS), texts
    return texts


def _wrong(way: str, text: str, environment: dict[str, str], directory: Path) -> str | None:
    """The error of the copied command, if any. A password is left for its owner to fill in."""
    shell = [sys.executable, "-c"] if way == "Python" else ["bash", "-ec"]
    done = subprocess.run(
        [*shell, text.replace('"..."', f'"{SECRET}"')],
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_S,
    )
    if done.returncode or re.search(r'"state":\s*"failed"', done.stdout):
        return f"exit code {done.returncode}: {done.stdout[-500:]} {done.stderr[-500:]}"
    return None


SHARED = ("ui/", "forms/resource-editor.tsx")
"""The components which the places are made of: each place that uses one is counted."""
PLACES: dict[str, tuple[str, ...]] = {
    "app/apply CopyAs": ("apply YAML", "export"),
    "charts/history-card CopyAs": ("history",),
    "pages/access/key-editor Editor": ("create a key",),
    "pages/access/user-editor Editor": ("add a user",),
    "pages/alerts/alerts ActionButton": ("switch a rule off", "end a silence"),
    "pages/alerts/rule-editor ResourceEditor": ("create a rule", "delete a rule"),
    "pages/cluster/drain CopyAs": ("drain", "undrain"),
    "pages/cluster/moves CopyAs": ("list moves",),
    "pages/limits/editor ResourceEditor": ("create a policy", "delete a policy"),
    "pages/messages/browse CopyAs": ("browse",),
    "pages/messages/publish CopyAs": ("publish",),
    "pages/messages/scheduled CopyAs": ("list scheduled messages",),
    "pages/mirrors/editor ResourceEditor": ("create a mirror", "delete a mirror"),
    "pages/mirrors/mirrors RowActions": ("resume a mirror",),
    "pages/mirrors/progress CopyAs": ("show a mirror",),
    "pages/nodes/enrol CopyAs": ("add a node",),
    "pages/nodes/nodes CopyAs": ("quarantine",),
    "pages/overview/first-steps CopyAs": ("example traffic",),
    "pages/pipelines/advice CopyAs": ("what is recommended",),
    "pages/pipelines/editor ResourceEditor": ("create a pipeline",),
    "pages/pipelines/pipelines RowActions": ("start a pipeline",),
    "pages/reliability/faults ActionButton": ("stop loss", "allow faults"),
    "pages/reliability/faults CopyAs": ("inject loss",),
    "pages/subscriptions/detail Confirm": ("delete a subscription",),
    "pages/subscriptions/detail CopyAs": ("pause",),
    "pages/subscriptions/editor ResourceEditor": ("create a subscription", "edit"),
    "pages/subscriptions/redrive CopyAs": ("re-drive",),
    "pages/subscriptions/reset-dialog CopyAs": ("reset the position",),
    "pages/topics/danger ActionButton": ("pause a topic",),
    "pages/topics/danger Confirm": ("purge", "delete a topic"),
    "pages/topics/editor ResourceEditor": ("create a topic",),
    "pages/topics/rate-card CopyAs": ("limits of a topic",),
}
"""Source and component -> the actions that click its places, at least as many as places."""
UNTRIED = {
    "pages/access/access Confirm": "revoke a key",
    "pages/alerts/silence-editor ResourceEditor": "create a silence",
    "pages/cluster/keys Confirm": "rotate the keys of a transport",
    "pages/cluster/level Confirm": "raise the level of the cluster",
    "pages/messages/scheduled Confirm": "cancel a delivery",
    "pages/subscriptions/kafka-group Confirm": "delete a group of Kafka",
}
"""Places that nothing clicks yet. None may be added."""


def _places() -> Counter[str]:
    """Source and component -> how often it stands there."""
    found: Counter[str] = Counter()
    sources = ROOT / "frontend/src"
    for page in sorted(sources.rglob("*.tsx")):
        name = page.relative_to(sources).as_posix()
        if name.startswith(SHARED):
            continue
        tags = re.findall(
            r"<(CopyAs|ActionButton|RowActions|Confirm|Editor|ResourceEditor)(?=[\s/>])",
            page.read_text("utf-8"),
        )
        found.update(f"{name.removesuffix('.tsx')} {tag}" for tag in tags)
    return found


def test_every_copy_as_is_tried() -> None:
    """Each place in the sources has an action that clicks it, and each action has its place."""
    found = _places()
    assert found.keys() == PLACES.keys() | UNTRIED.keys(), "add an action, and its place"
    short = {
        place: count
        for place, count in found.items()
        if place not in UNTRIED and count > len(PLACES[place])
    }
    assert not short, "more places than actions that click them"
    assert all(found[place] == 1 for place in UNTRIED), "one more that nothing clicks"
    tried = sorted(name for names in PLACES.values() for name in names)
    assert tried == sorted(action.name for part in PARTS for action in part())
