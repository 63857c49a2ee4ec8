"""Every route of the control service: what it is called with, and which rights it takes.

The table is written by hand, apart from the code that it checks. `tests/control/test_rights.py`
calls each route as every kind of caller, and fails for a route that is not in here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from fastapi.routing import APIRoute, APIWebSocketRoute

from tidecast_control import app
from tidecast_control.system.routes import router as system

Access = Literal["public", "anyone", "list", "seen", "topic", "publish", "platform", "whole"]
"""The rights that a key with scopes needs beside its role.

public, anyone: nothing. list: answers, and names nothing outside of its scopes. seen: any right on
the topic. topic: `manage` there. publish: `publish`, whatever the role. platform: `manage` on every
topic. whole: any right on every topic.
"""


@dataclass(frozen=True)
class Route:
    """A call. ``{s}`` in url and body stands for the topics' prefix, in a key's scopes or not."""

    access: Access
    method: str
    url: str
    body: Any = None
    status: int = 200
    hidden: int = 403
    """How a key that does not see it is refused."""
    undo: bool = False
    """A repeat would not find what it needs."""

    @property
    def of_topics(self) -> bool:
        """It names topics, or what belongs to one."""
        return "{" in self.url


def _kind(name: str, path: str, access: Access, who: str, spec: Any, change: Any) -> Any:
    plural, look = path.replace("-", "_"), f"/{path}/{who}"
    lists: Access = "platform" if access == "platform" else "list"
    seen: Access = "platform" if access == "platform" else "seen"
    return {
        f"list_{plural}": Route(lists, "GET", f"/{path}"),
        f"get_{name}": Route(seen, "GET", look, hidden=404),
        f"put_{name}": Route(access, "PUT", look, {"spec": spec}),
        f"patch_{name}": Route(access, "PATCH", look, {"spec": change}),
        f"delete_{name}": Route(access, "DELETE", look + UNUSED, undo=True),
    }


UNUSED = "?if_unused=false"
SPECS: dict[str, tuple[str, str, Any, Any]] = {
    "topic": ("topics", "{s}.a", {"mode": "durable"}, {"linger_us": 7}),
    "subscription": (
        "subscriptions", "{s}-s", {"topic": "{s}.a", "dead_letter": "{s}.dead"},
        {"ack_wait_s": 7},
    ),
    "traffic": ("traffic", "{s}.a", {"messages_per_s": 1}, {"messages_per_s": 2}),
    "rate_limit": (
        "rate-limits", "{s}-r", {"pattern": "{s}.*", "rate_bytes_per_s": 9},
        {"rate_bytes_per_s": 7},
    ),
    "alert_rule": (
        "alert-rules", "{s}-l", {"metric": "lag_s", "target": "{s}.a"}, {"threshold": 7},
    ),
    "silence": (
        "silences", "{s}-q", {"target": "{s}.>", "until": "2030-01-01T00:00:00Z"},
        {"reason": "x"},
    ),
    "pipeline": (
        "pipelines", "{s}-p", {"job": "replay", "source": "{s}.a", "topic": "{s}.b"}, {"rate": 7},
    ),
    "mirror": (
        "mirrors", "{s}-m",
        {"topic": "{s}.a", "servers": "127.0.0.1:9", "kafka_topic": "t", "paused": True},
        {"rate": 7},
    ),
    "transport": ("transports", "spare", {"port": 7500}, {"ttl": 1}),
    "fault": ("faults", "lab", {"drop": 0.1}, {"drop": 0.2}),
    "node": ("nodes", "n1", {"site": "x"}, {"site": "y"}),
}  # fmt: skip
"""Of each kind: path, name, a spec, a change."""
OF_PLATFORM = ("transport", "fault", "node")

ROUTES: dict[str, Route] = {
    "health_live": Route("public", "GET", "/health/live"),
    "health_ready": Route("public", "GET", "/health/ready"),
    "metrics": Route("platform", "GET", "/metrics"),
    "login": Route("public", "POST", "/auth/login", {"user": "vera", "password": "{password}"}),
    "list_problems": Route("public", "GET", "/problems"),
    "get_problem": Route("public", "GET", "/problems/denied"),
    "logout": Route("anyone", "POST", "/auth/logout", status=204),
    "me": Route("anyone", "GET", "/auth/me"),
    "change_password": Route("anyone", "POST", "/auth/password", {"old": "x", "new": "y" * 12}),
    "system_info": Route("anyone", "GET", "/system"),
    "check_token": Route("platform", "POST", "/auth/check", {"token": "x"}),
    "list_users": Route("platform", "GET", "/users"),
    "get_user": Route("platform", "GET", "/users/vera"),
    "put_user": Route("platform", "PUT", "/users/vera", {"role": "viewer"}),
    "delete_user": Route("platform", "DELETE", "/users/spare", undo=True),
    "list_keys": Route("platform", "GET", "/keys"),
    "create_key": Route("platform", "POST", "/keys", {"name": "made"}, 201, undo=True),
    "get_key": Route("platform", "GET", "/keys/spare"),
    "revoke_key": Route("platform", "DELETE", "/keys/spare"),
    "list_enrolments": Route("platform", "GET", "/enrolments"),
    "create_enrolment": Route("platform", "POST", "/enrolments", {"name": "made"}, 201, undo=True),
    "delete_enrolment": Route("platform", "DELETE", "/enrolments/spare", undo=True),
    "get_counters": Route("platform", "GET", "/nodes/n1/counters"),
    "get_drain": Route("platform", "GET", "/cluster/nodes/n1/drain"),
    "list_moves": Route("platform", "GET", "/cluster/moves"),
    "get_recorder": Route("platform", "GET", "/nodes/n1/recorder"),
    "rotate_credential": Route("platform", "POST", "/nodes/n1/rotate"),
    "revoke_credential": Route("platform", "POST", "/nodes/n1/revoke", undo=True),
    "get_cluster": Route("platform", "GET", "/cluster"),
    "get_peers": Route("platform", "GET", "/cluster/peers"),
    "finalize_level": Route("platform", "POST", "/cluster/finalize"),
    "get_wire_keys": Route("platform", "GET", "/transports/lab/keys"),
    "rotate_wire_keys": Route("platform", "POST", "/transports/lab/keys/rotate"),
    "list_audit": Route("platform", "GET", "/audit"),
    "export_audit": Route("platform", "GET", "/audit/export"),
    "get_audit": Route("platform", "GET", "/audit/1"),
    "export": Route("platform", "GET", "/export"),
    "apply": Route("list", "POST", "/apply", {"documents": []}),
    "list_queues": Route("list", "GET", "/queues"),
    "get_queue": Route("seen", "GET", "/queues/{s}.a:0", hidden=404),
    "list_alerts": Route("list", "GET", "/alerts"),
    "list_operations": Route("list", "GET", "/operations"),
    "get_operation": Route("seen", "GET", "/operations/{operation}", hidden=404),
    "get_effective_rates": Route("seen", "GET", "/effective-rates/{s}.a"),
    "get_history": Route("seen", "GET", "/history?scope=topic&name={s}.a&metric=in_per_s"),
    "browse_messages": Route("seen", "GET", "/topics/{s}.a/messages"),
    "list_scheduled": Route("seen", "GET", "/topics/{s}.a/scheduled"),
    "publish_message": Route("publish", "POST", "/topics/{s}.a/messages", {"text": "x"}, 201),
    "list_pipeline_runs": Route("seen", "GET", "/pipelines/{s}-p/runs", hidden=404),
    "get_pipeline_log": Route("seen", "GET", "/pipelines/{s}-p/runs/{run}/log", hidden=404),
    "start_pipeline": Route("topic", "POST", "/pipelines/{s}-p/start", None, 201, undo=True),
    "stop_pipeline": Route("topic", "POST", "/pipelines/{s}-busy/stop", undo=True),
    "pause_mirror": Route("topic", "POST", "/mirrors/{s}-m/pause", hidden=404),
    "resume_mirror": Route("topic", "POST", "/mirrors/{s}-m/resume", hidden=404, undo=True),
    "get_mirror_progress": Route("seen", "GET", "/mirrors/{s}-m/progress", hidden=404),
    "get_capacity": Route("list", "GET", "/capacity"),
    "apply_capacity": Route("topic", "POST", "/capacity/{s}.a/apply"),
    "start_traffic": Route("topic", "POST", "/traffic/{s}.a/start"),
    "stop_traffic": Route("topic", "POST", "/traffic/{s}.a/stop"),
    "purge_queue": Route("topic", "POST", "/queues/{s}.a:0/purge?confirm={s}.a:0"),
    "purge_topic": Route("topic", "POST", "/topics/{s}.a/purge?confirm={s}.a"),
    "seek_subscription": Route("topic", "POST", "/subscriptions/{s}-s/seek", {"at": "latest"}),
    "cancel_scheduled": Route(
        "topic", "POST", "/topics/{s}.a/scheduled/cancel", {"everything": True}
    ),
    "redrive_subscription": Route("topic", "POST", "/subscriptions/{s}-s/redrive", {"to": "{s}.a"}),
    **{
        f"{action}_{kind}": Route("topic", "POST", f"/{path}/{name}/{action}")
        for action in ("pause", "resume")
        for kind, path, name in (
            ("topic", "topics", "{s}.a"),
            ("queue", "queues", "{s}.a:0"),
            ("subscription", "subscriptions", "{s}-s"),
        )
    },
    **{
        f"live_{name}": Route("whole", "GET", f"/live/{name}")
        for name in (
            "overview",
            "topics",
            "flow",
            "reliability",
            "subscriptions",
            "queues",
            "nodes",
        )
    },
    "live_topic": Route("seen", "GET", "/live/topics/{s}.a"),
    "live_kafka": Route("platform", "GET", "/live/kafka"),
    "list_kafka_clients": Route("platform", "GET", "/kafka/clients"),
    "list_kafka_groups": Route("list", "GET", "/kafka/groups"),
    "get_kafka_group": Route("seen", "GET", "/kafka/groups/{s}-g", hidden=404),
    "delete_kafka_group": Route("topic", "DELETE", "/kafka/groups/{s}-g", hidden=404),
    "reset_kafka_offsets": Route(
        "topic", "POST", "/kafka/groups/{s}-g/reset", {"to": "latest"}, hidden=404
    ),
    "live_keys": Route("platform", "GET", "/live/keys"),
}
for _name, (_path, _who, _spec, _change) in SPECS.items():
    _access: Access = "platform" if _name in OF_PLATFORM else "topic"
    ROUTES |= _kind(_name, _path, _access, _who, _spec, _change)

SOCKETS = {"/engine", "/live"}


def filled(value: Any, words: dict[str, str]) -> Any:
    """``{word}`` in any text of a value, replaced."""
    if isinstance(value, dict):
        return {k: filled(v, words) for k, v in value.items()}
    if isinstance(value, list):
        return [filled(each, words) for each in value]
    if isinstance(value, str):
        for word, text in words.items():
            value = value.replace(f"{{{word}}}", text)
    return value


def all_routes() -> list[APIRoute]:
    """Every route that answers requests."""
    return [each for each in _walk() if isinstance(each, APIRoute)]


def all_sockets() -> set[str]:
    """The path of every websocket."""
    return {each.path for each in _walk() if isinstance(each, APIWebSocketRoute)}


def _walk() -> Iterator[Any]:
    yield from _routes(app.api_router().routes)
    yield from _routes(system.routes)


def _routes(routes: Any) -> Iterator[Any]:
    for route in routes:
        if isinstance(route, APIRoute | APIWebSocketRoute):
            yield route
        elif hasattr(route, "routes"):
            yield from _routes(route.routes)
        elif hasattr(route, "original_router"):
            yield from _routes(route.original_router.routes)


def right_of(route: APIRoute) -> str:
    """The right of the service that a route asks for first; "" for none."""
    return next(_rights(route.dependant), "")


def _rights(dependant: Any) -> Iterator[str]:
    for each in dependant.dependencies:
        right = getattr(each.call, "right", None)
        if right:
            yield right
        yield from _rights(each)
