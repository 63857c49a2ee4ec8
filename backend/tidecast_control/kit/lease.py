"""Leases in Postgres, by its clock: a service holds a row until ``held_until``, and renews it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, func, or_, text
from sqlalchemy.orm import Mapped


def lease_end(lease_s: float) -> ColumnElement[Any]:
    """The value of ``held_until`` for a lease that begins or is renewed now."""
    return func.now() + text(f"interval '{lease_s:g} seconds'")


def is_over(held_until: Mapped[Any]) -> ColumnElement[bool]:
    """The lease has ended, or there is none: another service may take the row."""
    return or_(held_until.is_(None), held_until <= func.now())
