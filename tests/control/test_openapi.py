"""The OpenAPI document: its snapshot, and what a stranger finds who fuzzes by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis
import pytest
from starlette.testclient import TestClient

from tests.project import ROOT
from tests.support.control import Service, _app
from tidecast_control.kit.actor import ROLES
from tidecast_control.kit.problems import ALLOWED
from tidecast_control.openapi import document

if TYPE_CHECKING:  # half a second of CPU: each worker imports this file, one runs it
    import schemathesis

EXAMPLES, EXAMPLES_LONG = 1, 25
SKIPPED = ("/api/v1/auth/log", "/api/v1/auth/password", "/metrics")
"""They would log the fuzzer out."""


def test_the_snapshot_is_what_the_service_says() -> None:
    path = ROOT / "backend" / "openapi.json"
    assert path.read_text("utf-8") == document(), (
        "run: .venv/bin/python -m tidecast_control.openapi backend/openapi.json"
    )


def test_every_operation_says_what_can_go_wrong() -> None:
    for path, methods in _app().openapi()["paths"].items():
        for method, operation in methods.items():
            assert operation.get("summary"), (method, path)
            if path.startswith("/api/v1/") and not path.startswith("/api/v1/problems"):
                assert "401" in operation["responses"], (method, path)


def test_every_pattern_has_words_for_errors() -> None:
    """A regular expression tells a reader little."""
    found, left = set(), [_app().openapi()]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            found |= {one["pattern"]} if isinstance(one.get("pattern"), str) else set()
            left += one.values()
        elif isinstance(one, list):
            left += one
    assert len(found) > 20
    assert found - set(ALLOWED) == set()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("role", "examples"),
    [
        ("admin", EXAMPLES),
        *(pytest.param(role, EXAMPLES_LONG, marks=pytest.mark.long) for role in ROLES),
    ],
)
def test_nothing_that_fits_the_schema_breaks_the_service(
    service: Service, role: str, examples: int
) -> None:
    """Server errors, answers that are not as declared, problems without a code."""
    import schemathesis
    from schemathesis.core.result import Ok

    schema = schemathesis.openapi.from_dict(_app().openapi())
    client = service.admin if role == "admin" else service.user("fuzzer", role)
    failures: list[str] = []
    tried = 0
    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()
        if operation.path.startswith(SKIPPED):
            continue
        tried += 1
        found = _fuzz(client, operation, examples)
        failures += found
    assert tried > 80
    assert client.get("/api/v1/auth/me").json()["role"] == role, "it was logged out meanwhile"
    assert failures == []


def _fuzz(client: TestClient, operation: schemathesis.APIOperation, examples: int) -> list[str]:
    failures: list[str] = []

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(case=operation.as_strategy())
    def fuzz(case: schemathesis.Case) -> None:
        arguments = case.as_transport_kwargs(base_url="http://localhost")
        arguments.pop("cookies", None)
        headers = {
            k: v
            for k, v in dict(arguments.pop("headers", {})).items()
            if k.lower() not in ("authorization", "x-csrf-token", "cookie")
        }
        arguments = {k: v for k, v in arguments.items() if v is not None}
        answer = client.request(headers=headers, **arguments)
        where = f"{case.method} {answer.request.url}"
        if answer.status_code >= 500 and answer.status_code not in (501, 502, 503, 504):
            failures.append(f"{where}: {answer.status_code} {answer.text[:300]}")
        declared = operation.definition.raw["responses"]
        if str(answer.status_code) not in declared and answer.status_code != 405:
            failures.append(f"{where}: {answer.status_code} is not declared")
        if answer.status_code >= 400 and answer.headers["content-type"].startswith("application"):
            body = answer.json()
            if "code" not in body and "checks" not in body:
                failures.append(f"{where}: a problem without a code: {body}")

    fuzz()
    return failures
