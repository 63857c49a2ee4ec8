"""Every form: one change saved by a click changes that one field of the whole resource."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.conftest import Api, Platform

METADATA = {
    "labels": {"team": "risk", "tier": "1"},
    "owner": "ann",
    "description": "Kept as it is",
    "deletion_protection": True,
    "managed_by": "gitops",
}
CHANGED_BY_A_WRITE = ("generation", "updated_at", "updated_by")
TOPIC = {
    "mode": "durable", "queues": 3, "history_bytes": 1_000_000, "receive_bytes": 2_000_001,
    "large_history_bytes": 33_554_433, "rate_packets_per_s": 12_345, "rate_bytes_per_s": 10_000_000,
    "linger_us": 31, "nak_delay_us": 77, "nak_retry_us": 333, "receiver_timeout_s": 7.25,
    "close_linger_s": 2.5, "fsync": "batch", "fsync_interval_ms": 75.5, "segment_bytes": 1_234_567,
    "retention_bytes": 987_654_321, "retention_s": 86_399.5, "retention_past_unacked": True,
    "cache_bytes": 7_654_321, "producer_ttl_s": 604_801, "on_full": "error", "flow": "max",
    "storage": "kafka://127.0.0.1:9/forms",
    "reliability": "reliable", "wire_id": 4711, "compression": "tables",
}  # fmt: skip
SUBSCRIPTION = {
    "topic": "forms.source",
    "filter": "size < 1000",
    "ack_wait_s": 17.5,
    "max_deliver": 7,
    "max_in_flight": 321,
    "dead_letter": "forms.dead",
    "paused": True,
}
POLICY = {
    "pattern": "forms.policy.>",
    "priority": 5,
    "rate_packets_per_s": 1_234_567,
    "rate_bytes_per_s": 10_000_000,
    "publisher": "some-node",
}
RULE = {
    "metric": "bytes_out_per_s",
    "target": "forms.none",
    "comparison": "above",
    "threshold": 123_456_789.25,
    "for_s": 12.5,
    "severity": "critical",
    "webhook": "",
    "enabled": False,
}
PIPELINE = {
    "job": "capacity",
    "enabled": False,
    "schedule": "0 3 * * *",
    "hours": 99,
    "timeout_s": 1234.5,
    "archive": "cold",
    "rollups": "warm",
    "since": "2026-01-01",
    "until": "2026-02-01",
    "rate": 5,
}


@dataclass(frozen=True)
class Form:
    """An editor: a resource with every field set, how its editor opens, and one change."""

    path: str
    spec: dict[str, Any]
    opened: Callable[[Page, str], None]
    """Goes to the page and opens the editor, at the service's address."""
    field: str
    typed: str
    changed: tuple[str, Any]
    """Field of the spec, and its value after the save."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def _by_edit(path: str) -> Callable[[Page, str], None]:
    def opened(page: Page, url: str) -> None:
        page.goto(url + path)
        page.get_by_role("button", name="Edit", exact=True).click()

    return opened


def _by_row(path: str, name: str, button: str = "") -> Callable[[Page, str], None]:
    def opened(page: Page, url: str) -> None:
        page.goto(url + path)
        row = page.get_by_role("row", name=re.compile(name)).first
        (
            row.get_by_role("button", name=button) if button else row.get_by_role("cell").first
        ).click()

    return opened


FORMS = {
    "topic": Form(
        "/topics/forms.topic", TOPIC, _by_edit("/topics/forms.topic"),
        "History ring", "8 MiB", ("history_bytes", 8 << 20),
    ),
    "subscription": Form(
        "/subscriptions/forms-subscription", SUBSCRIPTION,
        _by_edit("/subscriptions/forms-subscription"),
        "Max in flight", "400", ("max_in_flight", 400),
    ),
    "policy": Form(
        "/rate-limits/forms-policy", POLICY, _by_row("/limits", "forms-policy"),
        "Priority", "9", ("priority", 9),
    ),
    "rule": Form(
        "/alert-rules/forms-rule", RULE, _by_row("/alerts?tab=rules", "forms-rule", "Edit"),
        "For (seconds)", "20", ("for_s", 20.0),
    ),
    "pipeline": Form(
        "/pipelines/forms-pipeline", PIPELINE,
        _by_row("/pipelines", "forms-pipeline", "Edit forms-pipeline"),
        "Timeout (seconds)", "2000", ("timeout_s", 2000.0),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def source(api: Api) -> None:
    """The topics that the subscription names."""
    api.topic("forms.source", mode="durable")
    api.topic("forms.dead", mode="durable")


@pytest.fixture
def form(request: pytest.FixtureRequest, api: Api, source: None) -> Iterator[Form]:
    """A form, and the resource that it edits."""
    found = FORMS[request.param]
    api.ask("PUT", found.path, {"metadata": METADATA, "spec": found.spec})
    yield found
    api.ask("PATCH", found.path, {"metadata": {"deletion_protection": False}})
    api.ask("DELETE", found.path)


each_form = pytest.mark.parametrize("form", FORMS, indirect=True)


def one_form(fast: str) -> pytest.MarkDecorator:
    """For what all forms share: fast tests open ``fast``, the long tests all others."""
    forms = [n if n == fast else pytest.param(n, marks=pytest.mark.long) for n in FORMS]
    return pytest.mark.parametrize("form", forms, indirect=True)


def whole(api: Api, path: str) -> dict[str, Any]:
    """Metadata and spec; not what each write changes by itself."""
    found = api.ask("GET", path)
    metadata = {k: v for k, v in found["metadata"].items() if k not in CHANGED_BY_A_WRITE}
    return {"metadata": metadata, "spec": found["spec"]}


def save(dialog: Locator) -> None:
    dialog.get_by_role("button", name="Save", exact=True).click()


@each_form
def test_a_form_changes_what_was_changed_and_nothing_else(
    page: Page, platform: Platform, api: Api, form: Form
) -> None:
    before = whole(api, form.path)
    assert before["spec"].items() >= form.spec.items()
    form.opened(page, platform.url)
    dialog = page.get_by_role("dialog")
    dialog.get_by_label(form.field, exact=True).fill(form.typed)
    expect(dialog.get_by_label("Preview")).to_contain_text(form.changed[0])
    save(dialog)
    expect(dialog).to_have_count(0)
    after = copy.deepcopy(before)
    after["spec"][form.changed[0]] = form.changed[1]
    assert whole(api, form.path) == after


@one_form("topic")  # opened by its page's button
def test_a_form_edits_what_every_resource_has(
    page: Page, platform: Platform, api: Api, form: Form
) -> None:
    before = whole(api, form.path)
    form.opened(page, platform.url)
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Description", exact=True).fill("Another text")
    dialog.get_by_label("Owner", exact=True).fill("bob")
    dialog.get_by_label("Labels", exact=True).fill("team=risk, zone=eu")
    save(dialog)
    expect(dialog).to_have_count(0)
    after = copy.deepcopy(before)
    after["metadata"] |= {
        "description": "Another text",
        "owner": "bob",
        "labels": {"team": "risk", "zone": "eu"},
    }
    assert whole(api, form.path) == after


@one_form("rule")  # opened by its row's button
def test_a_form_does_not_overwrite_somebody_elses_change_unasked(
    page: Page, platform: Platform, api: Api, form: Form
) -> None:
    form.opened(page, platform.url)
    dialog = page.get_by_role("dialog")
    dialog.get_by_label(form.field, exact=True).fill(form.typed)
    expect(dialog.get_by_label("Preview")).to_contain_text(form.changed[0])
    api.ask("PATCH", form.path, {"metadata": {"owner": "somebody else"}})
    save(dialog)
    conflict = dialog.get_by_role("alert").filter(has_text="changed")
    expect(conflict).to_contain_text("meanwhile")
    assert whole(api, form.path)["spec"].items() >= form.spec.items(), "nothing was saved"
    conflict.get_by_role("button", name="Overwrite").click()
    expect(dialog).to_have_count(0)
    found = whole(api, form.path)
    assert found["spec"][form.changed[0]] == form.changed[1]
    assert found["metadata"]["owner"] == "somebody else", "an overwrite sends what was typed alone"


def test_a_conflict_can_be_reloaded(page: Page, platform: Platform, api: Api) -> None:
    api.topic("forms.reload")
    _by_edit("/topics/forms.reload")(page, platform.url)
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Owner", exact=True).fill("mine")
    api.ask("PATCH", "/topics/forms.reload", {"metadata": {"owner": "theirs"}})
    save(dialog)
    dialog.get_by_role("button", name="Reload").click()
    expect(dialog.get_by_label("Owner", exact=True)).to_have_value("theirs")
    dialog.get_by_label("Description", exact=True).fill("after a reload")
    save(dialog)
    expect(dialog).to_have_count(0)
    metadata = whole(api, "/topics/forms.reload")["metadata"]
    assert (metadata["owner"], metadata["description"]) == ("theirs", "after a reload")


def test_editing_a_user_keeps_the_forced_password_change(
    page: Page, platform: Platform, api: Api
) -> None:
    user = {"role": "viewer", "display_name": "Vera", "must_change_password": True}
    api.ask("PUT", "/users/vera", user | {"password": "first password"})
    before = api.ask("GET", "/users/vera")
    _by_row("/access?tab=users", "vera", "Edit vera")(page, platform.url)
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Full name").fill("Vera V.")
    save(dialog)
    expect(dialog).to_have_count(0)
    after = api.ask("GET", "/users/vera")
    assert {k for k in after if after[k] != before[k]} == {
        "display_name",
        "generation",
        "updated_at",
    }
    assert after["must_change_password"] is True
    api.ask("DELETE", "/users/vera")
