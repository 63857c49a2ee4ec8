"""Resources over REST: the same rules for every kind."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.conftest import Eventually
from tests.support.control import Service
from tests.support.races import two_at_once
from tidecast.config.topology import derive_topic_id
from tidecast_control.api import resources


def put(api: TestClient, path: str, spec: dict[str, Any], **metadata: Any) -> Any:
    answer = api.put(f"/api/v1/{path}", json={"metadata": metadata, "spec": spec})
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


def test_a_topic_is_created_changed_and_deleted(api: TestClient) -> None:
    made = api.put("/api/v1/topics/md.eu", json={"spec": {"linger_us": 50}})
    assert made.status_code == 201
    assert made.json()["metadata"]["generation"] == 1
    assert made.json()["spec"]["linger_us"] == 50
    again = api.put("/api/v1/topics/md.eu", json={"spec": {"linger_us": 50}})
    assert again.status_code == 200
    assert again.json()["metadata"]["generation"] == 1
    assert again.headers["etag"] == made.headers["etag"]
    changed = api.patch("/api/v1/topics/md.eu", json={"spec": {"rate_bytes_per_s": 1000}})
    assert changed.json()["metadata"]["generation"] == 2
    assert changed.json()["spec"]["linger_us"] == 50
    reset = api.patch("/api/v1/topics/md.eu", json={"spec": {"linger_us": None}})
    assert reset.json()["spec"]["linger_us"] == 20
    assert api.delete("/api/v1/topics/md.eu").json()["action"] == "delete"
    assert api.get("/api/v1/topics/md.eu").status_code == 404


def test_an_id_that_another_topic_is_given_is_refused_with_a_free_one(api: TestClient) -> None:
    number = derive_topic_id("b")
    put(api, "topics/a", {"wire_id": number})
    put(api, "topics/c", {"wire_id": number + 1})
    put(api, "topics/b", {})  # its own is made from the name, and may be the same
    refused = api.put("/api/v1/topics/d", json={"spec": {"wire_id": number}})
    assert refused.status_code == 422
    (problem,) = refused.json()["errors"]
    assert problem["pointer"] == "/spec/wire_id"
    assert problem["detail"].startswith(f"{number}: topic a is given the same")
    assert problem["allowed"] == f"another number of 1..65535, such as {number + 2}"
    put(api, "topics/d", {"wire_id": number + 2})


def test_preconditions(api: TestClient) -> None:
    path = "/api/v1/topics/a"
    only_new = {"If-None-Match": "*"}
    first = api.put(path, json={"spec": {}}, headers=only_new)
    assert first.status_code == 201
    second = api.put(path, json={"spec": {"linger_us": 1}}, headers=only_new)
    assert (second.status_code, second.json()["code"]) == (412, "precondition_failed")
    stale = {"If-Match": '"other-1"'}
    assert api.patch(path, json={"spec": {}}, headers=stale).status_code == 412
    assert api.delete(path, headers=stale).status_code == 412
    etag = {"If-Match": first.headers["etag"]}
    assert api.patch(path, json={"spec": {"linger_us": 9}}, headers=etag).status_code == 200
    fresh = api.get(path).headers["etag"]
    assert api.get(path, headers={"If-None-Match": fresh}).status_code == 304
    assert api.delete(path).status_code == 200
    again = api.put(path, json={"spec": {}})
    assert again.json()["metadata"]["generation"] == first.json()["metadata"]["generation"]
    assert api.patch(path, json={"spec": {"linger_us": 9}}, headers=etag).status_code == 412


def test_two_patches_at_once_lose_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    path, other = "/api/v1/topics/a", service.user("other", "operator")
    assert service.admin.put(path, json={"spec": {}}).status_code == 201
    answers = two_at_once(
        (resources, "built"),
        (
            lambda: service.admin.patch(path, json={"spec": {"linger_us": 7}}),
            lambda: other.patch(path, json={"spec": {"history_bytes": 1 << 20}}),
        ),
        service.ctx.db,
        monkeypatch,
        eventually,
    )
    assert [answer.status_code for answer in answers] == [200, 200]
    spec = service.admin.get(path).json()["spec"]
    assert (spec["linger_us"], spec["history_bytes"]) == (7, 1 << 20)


def test_an_etag_covers_the_status_and_a_write_depends_on_the_version(api: TestClient) -> None:
    path = "/api/v1/rate-limits/all"
    put(api, "rate-limits/all", {"pattern": "metered.*", "rate_packets_per_s": 5})
    read = api.get(path)
    same = {"If-None-Match": f'W/{read.headers["etag"]}, "other-1"'}
    assert api.get(path, headers=same).status_code == 304
    put(api, "topics/metered.a", {})
    again = api.get(path, headers=same)
    assert (again.status_code, again.json()["status"]["topics_matched"]) == (200, 1)
    assert again.json()["metadata"] == read.json()["metadata"]
    known = {"If-Match": read.headers["etag"]}
    change = {"spec": {"rate_packets_per_s": 6}}
    assert api.patch(path, json=change, headers=known).status_code == 200
    assert api.patch(path, json=change, headers=known).status_code == 412


@pytest.mark.parametrize(
    ("old", "new", "path", "impact"),
    [
        ({}, {"rate_bytes_per_s": 5}, "/spec/rate_bytes_per_s", "live"),
        ({}, {"history_bytes": 1 << 20}, "/spec/history_bytes", "recreate"),
        ({"mode": "durable"}, {"mode": "live"}, "/spec/mode", "data_loss"),
        ({"mode": "durable"}, {"retention_bytes": 100}, "/spec/retention_bytes", "data_loss"),
        ({"mode": "durable", "retention_s": 5}, {"retention_s": 9}, "/spec/retention_s", "live"),
    ],
)
def test_a_dry_run_names_the_impact_and_does_nothing(
    api: TestClient, old: dict[str, Any], new: dict[str, Any], path: str, impact: str
) -> None:
    put(api, "topics/t", old)
    answer = api.patch("/api/v1/topics/t?dry_run=true", json={"spec": new})
    plan = answer.json()
    assert plan["action"] == "update"
    assert [(c["path"], c["impact"]) for c in plan["changes"] if c["path"] == path] == [
        (path, impact)
    ]
    assert plan["impact"] == impact
    assert api.get("/api/v1/topics/t").json()["metadata"]["generation"] == 1


def test_dry_runs_of_put_and_delete_do_nothing(api: TestClient) -> None:
    plan = api.put("/api/v1/topics/t?dry_run=true", json={"spec": {}}).json()
    assert plan["action"] == "create"
    assert api.get("/api/v1/topics/t").status_code == 404
    put(api, "topics/t", {})
    plan = api.delete("/api/v1/topics/t?dry_run=true").json()
    assert (plan["action"], plan["impact"]) == ("delete", "data_loss")
    assert api.get("/api/v1/topics/t").status_code == 200


def test_deletion_protection_and_use(api: TestClient) -> None:
    put(api, "topics/t", {"mode": "durable"}, deletion_protection=True)
    refused = api.delete("/api/v1/topics/t")
    assert (refused.status_code, refused.json()["code"]) == (409, "protected")
    api.patch("/api/v1/topics/t", json={"metadata": {"deletion_protection": False}})
    put(api, "subscriptions/s", {"topic": "t"})
    refused = api.delete("/api/v1/topics/t")
    assert (refused.status_code, refused.json()["code"]) == (409, "in_use")
    assert "subscription s" in refused.json()["detail"]
    assert api.delete("/api/v1/topics/t?if_unused=false").status_code == 200


@pytest.mark.parametrize("sort", ["name", "-name", "created_at", "-updated_at"])
def test_lists_page_by_cursor_and_miss_nothing(api: TestClient, sort: str) -> None:
    names = {f"t.{i:02}" for i in range(23)}
    for name in sorted(names):
        put(api, f"topics/{name}", {}, labels={"odd": str(int(name[2:]) % 2)})
    seen: list[str] = []
    cursor = None
    for _ in range(10):
        query: Any = {"limit": 5, "sort": sort} | ({"cursor": cursor} if cursor else {})
        page = api.get("/api/v1/topics", params=query).json()
        seen += [item["metadata"]["name"] for item in page["items"]]
        cursor = page.get("next_cursor")
        if cursor is None:
            break
    assert len(seen) == len(names)
    assert set(seen) == names
    assert seen == sorted(seen, reverse=sort.startswith("-"))


def test_filters_hold_before_paging(api: TestClient) -> None:
    for i in range(12):
        put(api, f"topics/t.{i:02}", {}, labels={"odd": str(i % 2)}, description=f"number {i}")
    page = api.get("/api/v1/topics?label=odd=1&limit=3&count=true").json()
    assert [i["metadata"]["name"] for i in page["items"]] == ["t.01", "t.03", "t.05"]
    assert page["total"] == 6
    assert api.get("/api/v1/topics?q=number 11").json()["items"][0]["metadata"]["name"] == "t.11"
    assert api.get("/api/v1/topics?q=t.0_").json()["items"] == []
    assert api.get("/api/v1/topics?label=missing").json()["items"] == []
    assert len(api.get("/api/v1/topics?label=odd").json()["items"]) == 12


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("sort=spec", "query/sort"),
        ("limit=501", "query/limit"),
        ("cursor=rubbish!", "query/cursor"),
        ("label==", "query/label/0"),
    ],
)
def test_lists_refuse_what_they_do_not_know(api: TestClient, query: str, pointer: str) -> None:
    answer = api.get(f"/api/v1/topics?{query}")
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["code"] == "invalid_request"
    assert problem["errors"][0]["pointer"] == pointer
    assert problem["request_id"]


def test_a_cursor_belongs_to_its_sort(api: TestClient) -> None:
    put(api, "topics/a", {})
    put(api, "topics/b", {})
    cursor = api.get("/api/v1/topics?limit=1").json()["next_cursor"]
    answer = api.get(f"/api/v1/topics?sort=-name&cursor={cursor}")
    assert answer.status_code == 422


@pytest.mark.parametrize(
    ("path", "spec", "pointer"),
    [
        ("topics/t", {"transport": "nowhere"}, "/spec/transport"),
        ("topics/t", {"linger_us": -1}, "/spec/linger_us"),
        ("topics/t", {"wire_id": 7}, "/spec/wire_id"),
        ("topics/t", {"owner": "*"}, "/spec/owner"),
        ("topics/t", {"compression": "zstd"}, "/spec/compression"),
        (
            "topics/t",
            {"compression": "tables", "reliability": "unreliable"},
            "/spec/compression",
        ),
        ("topics/t", {"owner": "a b", "mode": "durable"}, "/spec/owner"),
        ("topics/t", {"surprise": 1}, "/spec/surprise"),
        ("transports/x", {"group": "10.0.0.1"}, "/spec/group"),
        ("transports/x", {"port": 7401}, "/spec/port"),
        ("subscriptions/s", {"topic": "first"}, "/spec/topic"),
        ("rate-limits/r", {"pattern": "a.>.b"}, "/spec/pattern"),
        ("faults/multicast", {"drop": 1.5}, "/spec/drop"),
        ("faults/ipc", {"drop": 0.5}, "/spec"),
        ("traffic/none", {}, "/spec/topic"),
        ("alert-rules/r", {"metric": "ring_fill", "webhook": "ftp://x/"}, "/spec/webhook"),
    ],
)
def test_wrong_specs_are_refused_with_a_pointer(
    api: TestClient, path: str, spec: dict[str, Any], pointer: str
) -> None:
    put(api, "topics/first", {"wire_id": 7})
    put(api, "transports/wire", {})
    answer = api.put(f"/api/v1/{path}", json={"spec": spec})
    assert answer.status_code == 422, answer.text
    assert [e["pointer"] for e in answer.json()["errors"]] == [pointer]


def test_every_kind_keeps_the_same_contract(api: TestClient) -> None:
    put(api, "topics/t", {"mode": "durable"})
    later = "2100-01-01T00:00:00Z"
    kinds: dict[str, dict[str, Any]] = {
        "transports/extra": {"kind": "ipc"},
        "rate-limits/r": {"pattern": "md.>", "rate_bytes_per_s": 5},
        "subscriptions/s": {"topic": "t"},
        "traffic/t": {},
        "faults/multicast": {"drop": 0.1},
        "alert-rules/a": {"metric": "ring_fill"},
        "silences/q": {"until": later},
        "nodes/n": {"site": "x"},
    }
    for path, spec in kinds.items():
        first = put(api, path, spec)
        assert first["metadata"]["generation"] == 1
        assert put(api, path, spec)["metadata"]["generation"] == 1
        labelled = api.patch(f"/api/v1/{path}", json={"metadata": {"labels": {"a": "b"}}}).json()
        assert labelled["metadata"]["labels"] == {"a": "b"}
        assert labelled["metadata"]["generation"] == 2
        assert labelled["spec"] == first["spec"]
        assert api.get(f"/api/v1/{path}").json()["metadata"] == labelled["metadata"]
        assert api.delete(f"/api/v1/{path}").status_code == 200
        assert api.delete(f"/api/v1/{path}").status_code == 404


def test_which_rate_limit_holds_and_why(api: TestClient) -> None:
    def rate(name: str) -> Any:
        return api.get(f"/api/v1/topics/{name}").json()["status"]["effective_rate"]

    put(api, "topics/md.eu.bonds", {})
    put(api, "topics/md.us", {"rate_bytes_per_s": 7})
    assert rate("md.eu.bonds")["bytes_source"] == "none"
    put(api, "rate-limits/all", {"pattern": ">", "rate_bytes_per_s": 100})
    put(api, "rate-limits/md", {"pattern": "md.>", "rate_bytes_per_s": 50})
    put(api, "rate-limits/packets", {"pattern": "md.*.bonds", "rate_packets_per_s": 9})
    found = rate("md.eu.bonds")
    assert (found["bytes_per_s"], found["bytes_source"]) == (50, "rate_limit/md")
    assert (found["packets_per_s"], found["packets_source"]) == (9, "rate_limit/packets")
    assert found["shadowed"] == ["all"]
    assert rate("md.us")["bytes_source"] == "spec"
    put(api, "rate-limits/all", {"pattern": ">", "rate_bytes_per_s": 0, "priority": 5})
    assert (rate("md.eu.bonds")["bytes_per_s"]) == 0
    status = api.get("/api/v1/rate-limits/md").json()["status"]
    assert (status["topics_matched"], status["topics_effective"]) == (2, 0)
    told = api.get("/api/v1/effective-rates/md.new.bonds").json()
    assert (told["exists"], told["effective_rate"]["bytes_source"]) == (False, "rate_limit/all")
    assert [(p["name"], p["wins"]) for p in told["policies"]] == [
        ("all", True),
        ("packets", True),
        ("md", False),
    ]


def test_faults_are_guarded_by_the_setting(service: Service) -> None:
    object.__setattr__(service.ctx.settings, "allow_faults", False)
    answer = service.admin.put("/api/v1/faults/multicast", json={"spec": {"drop": 0.5}})
    assert (answer.status_code, answer.json()["code"]) == (403, "denied")
    assert service.admin.get("/api/v1/faults").status_code == 200


def test_every_change_has_a_topology_version_of_its_own(service: Service, api: TestClient) -> None:
    versions = []
    for path in ("topics/a", "topics/b", "rate-limits/r"):
        put(api, path, {"pattern": ">"} if path.startswith("rate") else {})
        versions.append(int(api.get("/api/v1/system").json()["topology_version"]))
    assert all(b == a + 1 for a, b in itertools.pairwise(versions))
    put(api, "alert-rules/x", {"metric": "ring_fill"})
    assert int(api.get("/api/v1/system").json()["topology_version"]) == versions[-1]


def test_a_live_topic_takes_no_settings_of_queues(api: TestClient) -> None:
    """They would be stored and mean nothing: what is published would be kept nowhere."""
    refused = api.put("/api/v1/topics/x", json={"spec": {"queues": 3, "fsync": "batch"}})
    assert refused.status_code == 422
    assert [e["pointer"] for e in refused.json()["errors"]] == ["/spec/queues", "/spec/fsync"]
    assert "only durable topics have queues" in refused.json()["errors"][0]["detail"]
    put(api, "topics/x", {"queues": 3, "fsync": "batch", "mode": "durable"})


def test_the_storage_of_a_topic_is_checked_and_kept(api: TestClient) -> None:
    stored = {"mode": "durable", "queues": 2, "storage": "kafka://127.0.0.1:9/orders?tls=true"}
    put(api, "topics/x", stored)
    assert api.get("/api/v1/topics/x").json()["spec"]["storage"] == stored["storage"]
    assert put(api, "topics/any", stored | {"owner": "*"})["spec"]["owner"] == "*"
    for change, pointer, text in (
        ({"storage": "s3://x"}, "/spec/storage", "allowed are local, kafka://HOST:PORT"),
        ({"storage": "kafka://h:1/t?group=g"}, "/spec/storage", "kafka.group: g: is for reading"),
        ({"fsync": "none"}, "/spec/fsync", "with storage on Kafka allowed are interval, batch"),
        ({"queues": 3}, "/spec/queues", "3: the storage of the topic is Kafka"),
        ({"mode": "live", "queues": 1}, "/spec/storage", "only durable topics have queues"),
    ):
        refused = api.put("/api/v1/topics/y", json={"spec": stored | change})
        if "queues" in change and len(change) == 1:
            etag = api.get("/api/v1/topics/x").headers["etag"]
            refused = api.put(
                "/api/v1/topics/x", json={"spec": stored | change}, headers={"If-Match": etag}
            )
        assert refused.status_code == 422, change
        (problem,) = refused.json()["errors"]
        assert problem["pointer"] == pointer
        assert text in problem["detail"]


def test_subscriptions_have_one_name_and_one_start(api: TestClient) -> None:
    put(api, "topics/x", {"mode": "durable"})
    spec = put(api, "subscriptions/s", {"topic": "x", "max_deliver": 7, "max_in_flight": 9})["spec"]
    assert (spec["max_deliver"], spec["max_in_flight"]) == (7, 9)
    assert spec["start"]["at"] == "earliest"
    for wrong in ({}, {"at": "earliest", "shift": 1}, {"at": "token"}, {"at": "time"}):
        assert api.post("/api/v1/subscriptions/s/seek", json=wrong).status_code == 422, wrong
