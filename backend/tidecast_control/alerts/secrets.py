"""The write-only parts of alert rules: stored apart from the spec, which has them masked."""

from __future__ import annotations

from sqlalchemy import delete
from sqlmodel import Session, col

from tidecast_control.alerts.models import WebhookSecretRow
from tidecast_control.alerts.schemas import AlertRuleSpec
from tidecast_control.alerts.webhook_address import is_masked, masked
from tidecast_control.kit.problems import invalid

FIELDS = ("webhook", "webhook_secret")


def seal(session: Session, rule: str, spec: AlertRuleSpec, *, store: bool) -> AlertRuleSpec:
    """The spec with its secrets masked; ``store``: they are kept, and older ones are deleted.

    A value that is masked already means the one that is stored. Raises `invalid_request` when
    there is none: what `export` gave knows no secrets.
    """
    shown: dict[str, str] = {}
    for field in FIELDS:
        value = getattr(spec, field)
        if not value:
            continue
        if not is_masked(value):
            shown[field] = masked(value)
            if store:
                session.merge(WebhookSecretRow(rule=rule, masked=shown[field], value=value))
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
    return row.value if row is not None else None
