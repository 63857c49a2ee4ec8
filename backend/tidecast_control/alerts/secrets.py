"""The write-only parts of alert rules: stored apart from the spec, which has them masked."""

from __future__ import annotations

from sqlalchemy import delete
from sqlmodel import Session, col, select

from tidecast_control.alerts.models import AlertRow, DeliveryRow, WebhookSecretRow
from tidecast_control.alerts.schemas import AlertRuleSpec
from tidecast_control.alerts.webhook_address import is_masked, masked
from tidecast_control.kit.problems import invalid
from tidecast_control.vault import renew_rows, vault_of

FIELDS = ("webhook", "webhook_secret")
LOST = "failed: the URL is lost, give it again"


def seal(session: Session, rule: str, spec: AlertRuleSpec, *, store: bool) -> AlertRuleSpec:
    """The spec with its secrets masked; ``store``: store new secrets, and delete older secrets.

    A value that is masked already stands for the stored secret. Raises `invalid_request` when no
    secret is stored: the output of `export` has none.
    """
    shown: dict[str, str] = {}
    for field in FIELDS:
        value = getattr(spec, field)
        if not value:
            continue
        if not is_masked(value):
            shown[field] = masked(value)
            if store:
                sealed = vault_of(session).seal(value, _place(rule, shown[field]))
                session.merge(WebhookSecretRow(rule=rule, masked=shown[field], value=sealed))
        elif reveal(session, rule, value) is None:
            raise invalid(f"/spec/{field}", "it is masked, and none is stored", "the whole value")
        else:
            shown[field] = value
    if store:
        old = delete(WebhookSecretRow).where(col(WebhookSecretRow.rule) == rule)
        session.execute(old.where(col(WebhookSecretRow.masked).not_in(list(shown.values()))))
    return spec.model_copy(update=shown)


def reveal(session: Session, rule: str, shown: str) -> str | None:
    """The secret behind a masked value; "" is itself. None: it is lost."""
    if not shown:
        return ""
    row = session.get(WebhookSecretRow, (rule, shown))
    return None if row is None else vault_of(session).open(row.value, _place(rule, shown))


def reseal(session: Session, *, forget: bool) -> None:
    """Seal secrets with the vault's first key, also those of calls that wait. Raises Unopened.

    ``forget``: a secret that no key opens is deleted. Its rule then reports that the URL is lost.
    """
    rows = session.exec(select(WebhookSecretRow)).all()
    for row in renew_rows(
        session, rows, lambda row: {"value": _place(row.rule, row.masked)}, forget=forget
    ):
        session.delete(row)
    calls = session.exec(select(DeliveryRow)).all()
    for call in renew_rows(session, calls, _call_places, forget=forget):
        session.delete(call)
        alert = session.get(AlertRow, call.alert)
        if alert is not None:
            alert.delivery = LOST
            session.add(alert)


def call_place(call: str, field: str) -> str:
    """The place of a field of a call that waits, for the vault."""
    return f"webhook_deliveries/{call}/{field}"


def _place(rule: str, shown: str) -> str:
    return f"webhook_secrets/{rule}/{shown}"


def _call_places(call: DeliveryRow) -> dict[str, str]:
    return {field: call_place(call.id, field) for field in ("url", "secret")}
