"""Apply and export: all or nothing, pruned by owner, round trip."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.support.control import Service
from tidecast_control.first_run import PIPELINES

YAML = {"Content-Type": "application/yaml"}
PLATFORM = """
kind: subscription
metadata: {name: billing}
spec: {topic: orders}
---
kind: topic
metadata: {name: orders, labels: {team: shop}}
spec: {mode: durable, queues: 4, transport: fast}
---
kind: transport
metadata: {name: fast}
spec: {port: 7600}
---
kind: rate_limit
metadata: {name: calm}
spec: {pattern: "orders.>", rate_bytes_per_s: 1000}
"""


def apply(api: TestClient, text: str, query: str = "") -> Any:
    return api.post(f"/api/v1/apply{query}", content=text, headers=YAML)


def test_documents_may_refer_to_later_ones(api: TestClient) -> None:
    plan = apply(api, PLATFORM, "?dry_run=true").json()
    assert (plan["dry_run"], plan["created"]) == (True, 4)
    assert api.get("/api/v1/topics/orders").status_code == 404
    done = apply(api, PLATFORM).json()
    assert (done["created"], done["updated"]) == (4, 0)
    assert api.get("/api/v1/topics/orders").json()["spec"]["queues"] == 4
    again = apply(api, PLATFORM).json()
    assert (again["created"], again["updated"], again["unchanged"]) == (0, 0, 4)


def test_one_error_and_nothing_is_done(api: TestClient) -> None:
    text = PLATFORM + "---\nkind: topic\nmetadata: {name: bad}\nspec: {linger_us: -1}\n"
    text += "---\nkind: topic\nmetadata: {name: worse}\nspec: {transport: nowhere}\n"
    answer = apply(api, text)
    assert answer.status_code == 422
    assert [e["pointer"] for e in answer.json()["errors"]] == [
        "/documents/4/spec/linger_us",
        "/documents/5/spec/transport",
    ]
    assert api.get("/api/v1/topics/orders").status_code == 404


def test_prune_deletes_only_what_it_manages(api: TestClient) -> None:
    api.put("/api/v1/topics/by-hand", json={"spec": {}})
    apply(api, PLATFORM, "?managed_by=git")
    fewer = "kind: transport\nmetadata: {name: fast}\nspec: {port: 7600}\n"
    plan = apply(api, fewer, "?managed_by=git&prune=true&dry_run=true").json()
    assert (plan["deleted"], plan["unchanged"]) == (3, 1)
    assert api.get("/api/v1/topics/orders").status_code == 200
    assert apply(api, fewer, "?managed_by=git&prune=true").json()["deleted"] == 3
    assert api.get("/api/v1/topics/orders").status_code == 404
    assert api.get("/api/v1/topics/by-hand").status_code == 200
    assert apply(api, fewer, "?prune=true").status_code == 422


def test_export_is_what_apply_takes(api: TestClient) -> None:
    apply(api, PLATFORM)
    exported = api.get("/api/v1/export").text
    result = apply(api, exported).json()
    assert (result["created"], result["updated"], result["deleted"]) == (0, 0, 0)
    assert result["unchanged"] == 6 + len(PIPELINES)
    for path in ("subscriptions/billing", "topics/orders", "transports/fast"):
        assert api.delete(f"/api/v1/{path}").status_code == 200
    assert apply(api, exported).json()["created"] == 3
    assert api.get("/api/v1/export").text == exported
    only = api.get("/api/v1/export?kind=topic").text
    assert only.count("kind:") == 1
    assert api.get("/api/v1/export?kind=nonsense").status_code == 422


NO_DOCUMENTS = [
    ("a: [", "bad_request"),
    ("a: &x 1\nb: *x\n", "bad_request"),
    ("[" * 200_000, "bad_request"),  # libyaml's composer would end the process
    ("kind: nonsense\nmetadata: {name: x}\n", "invalid_request"),
    ("kind: topic\nmetadata: {}\n", "invalid_request"),
    (
        "kind: topic\nmetadata: {name: a}\n---\nkind: topic\nmetadata: {name: a}\n",
        "invalid_request",
    ),
    ("- 1\n- 2\n", "invalid_request"),
    ("!!python/object:os.system {}\n", "bad_request"),
]


def test_what_is_no_document_is_refused(api: TestClient, subtests: pytest.Subtests) -> None:
    for text, code in NO_DOCUMENTS:
        with subtests.test(text[:30]):
            answer = apply(api, text)
            assert answer.status_code in (400, 422)
            assert answer.json()["code"] == code


def test_apply_needs_the_rights_of_each_document(service: Service) -> None:
    operator = service.user("otto", "operator")
    topic = "kind: topic\nmetadata: {name: t}\nspec: {}\n"
    assert apply(operator, topic).status_code == 200
    transport = "kind: transport\nmetadata: {name: x}\nspec: {kind: ipc}\n"
    assert apply(operator, transport).status_code == 403
    scope = {"pattern": "md.>", "rights": ["manage"]}
    key = service.key("k", role="operator", scopes=[scope])
    assert apply(key, topic.replace("name: t", "name: other")).status_code == 403
    assert apply(key, topic.replace("name: t", "name: md.x")).status_code == 200


def test_json_documents(api: TestClient) -> None:
    body = {"documents": [{"kind": "topic", "metadata": {"name": "j"}, "spec": {}}]}
    assert api.post("/api/v1/apply", json=body).json()["created"] == 1
    refused = api.post("/api/v1/apply", content="x", headers={"Content-Type": "text/html"})
    assert (refused.status_code, refused.json()["code"]) == (415, "unsupported_media_type")
