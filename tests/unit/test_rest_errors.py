"""The errors of a client when the control service refuses a request."""

from __future__ import annotations

import io
import json
import urllib.error
from email.message import Message
from typing import Any

from tidecast.rest.http import _error_of


def said(status: int, **document: Any) -> str:
    body = io.BytesIO(json.dumps({"title": "Not valid", **document}).encode())
    return str(_error_of(urllib.error.HTTPError("http://x", status, "bad", Message(), body)))


def test_a_reason_is_named_once() -> None:
    """A refusal of one field has it as ``detail`` and among the fields that are wrong."""
    one = {"pointer": "query/level", "detail": "9: this service reads level 1"}
    text = said(422, detail=f"{one['pointer']}: {one['detail']}", errors=[one])
    assert text == "422: Not valid; query/level: 9: this service reads level 1"


def test_allowed_values_are_named() -> None:
    one = {"pointer": "/documents/0/kind", "detail": "'nosuch'", "allowed": "topic, transport"}
    assert said(422, detail="1 problem(s)", errors=[one]) == (
        "422: Not valid; 1 problem(s); /documents/0/kind: 'nosuch': allowed topic, transport"
    )
    one = {"pointer": "query/confirm", "detail": "type the name again", "allowed": "orders"}
    text = said(422, detail=f"{one['pointer']}: {one['detail']}", errors=[one])
    assert text == "422: Not valid; query/confirm: type the name again: allowed orders"
    one = {"pointer": "/spec/rate", "detail": "-1: allowed >= 0", "allowed": ">= 0"}
    assert said(422, errors=[one]) == "422: Not valid; /spec/rate: -1: allowed >= 0"


def test_all_fields_that_are_wrong_are_named() -> None:
    fields = [{"pointer": f"/spec/{name}", "detail": "wrong"} for name in "ab"]
    assert said(422, detail="two fields", errors=fields) == (
        "422: Not valid; two fields; /spec/a: wrong; /spec/b: wrong"
    )
    assert said(409, detail="node n1 reads level 1") == "409: Not valid; node n1 reads level 1"
