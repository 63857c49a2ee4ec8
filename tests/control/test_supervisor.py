"""Background tasks: whatever fails in one, it continues, the others too, and it is seen."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy import text

from tests.conftest import Eventually
from tests.support.control import Service, service_of
from tidecast_control import lifespan
from tidecast_control.alerts.evaluate import Evaluator
from tidecast_control.alerts.webhooks import WebhookSender
from tidecast_control.audit.denials import KINDS_MAX, Denial, Denials
from tidecast_control.kit.wake import Wake
from tidecast_control.link.hub import Hub
from tidecast_control.live.world import Source, build_sound
from tidecast_control.pipelines.runner import Runner
from tidecast_control.settings import Settings
from tidecast_control.supervisor import BACKOFF_S_MIN, Supervisor, Task, Turn

FAULTY: dict[str, tuple[Any, str]] = {
    "changes": (lifespan, "_listen"),
    "nodes": (lifespan.NodesCheck, "_connected"),
    "faults": (lifespan, "_expired"),
    "housekeeping": (lifespan, "_forget_rows"),
    "live_feed": (Hub, "watch"),
    "alerts": (Evaluator, "step"),
    "webhooks": (WebhookSender, "_claim"),
    "audit": (Denials, "flush"),
    "pipelines": (Runner, "_take"),
}
"""Task -> what is made to fail in it."""


@pytest.mark.parametrize("name", sorted(FAULTY))
def test_a_task_that_fails_begins_again(
    settings: Settings, name: str, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """An unexpected exception in each loop: the readiness check and a metric name the loop."""
    fails = [True]
    where, attribute = FAULTY[name]
    sound = getattr(where, attribute)

    def injected(*args: Any, **options: Any) -> Any:
        if fails[0]:
            raise ZeroDivisionError("injected")
        return sound(*args, **options)

    monkeypatch.setattr(where, attribute, injected)
    monkeypatch.setattr("tidecast_control.supervisor.BACKOFF_S_MAX", BACKOFF_S_MIN)
    monkeypatch.setattr(lifespan, "MAINTENANCE_S", 0.05)
    monkeypatch.setattr(lifespan, "NODES_S", 0.05)
    monkeypatch.setattr(lifespan, "HOUSEKEEPING_S", 0.05)
    quick = settings.model_copy(update={"alert_interval_s": 0.05})
    with service_of(quick, login=False) as service:
        task = service.ctx.supervisor.tasks[name]
        eventually(lambda: task.failures >= 2, "a second failure")
        ready = service.client().get("/health/ready")
        assert ready.status_code == 503
        bad = {key: words for key, words in ready.json()["checks"].items() if words != "ok"}
        assert bad == {f"task {name}": "ZeroDivisionError: injected"}
        metrics = service.client().get("/metrics", headers={"Authorization": "Bearer x"})
        assert metrics.status_code == 401
        fails[0] = False
        eventually(lambda: task.check == "ok", "the next turn")
        assert service.client().get("/health/ready").status_code == 200


def test_a_task_backs_off_and_recovers() -> None:
    now_s = [0.0]
    supervisor = Supervisor(lambda: now_s[0])
    begun = 0
    over = asyncio.Event()

    async def run(turn: Turn) -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise KeyError("x")
        turn.failed(ValueError("a part"))
        turn.done()
        assert supervisor.checks() == {"t": "ValueError: a part"}
        turn.done()
        over.set()
        await asyncio.Event().wait()

    async def main() -> Task:
        supervisor.start("t", run)
        task = supervisor.tasks["t"]
        await over.wait()
        await supervisor.stop()
        return task

    task = asyncio.run(asyncio.wait_for(main(), 20))
    assert (begun, task.failures, task.backoff.failures) == (3, 3, 0)
    now_s[0] = 61.0
    assert task.check == "no turn for 61 s"


@pytest.mark.parametrize("steps", range(6))
def test_a_task_that_is_woken_as_it_is_cancelled_ends(steps: int) -> None:
    """A service that stops waits for each of its tasks."""

    async def main() -> None:
        wake, waiting = Wake(), asyncio.Event()

        async def run() -> None:
            wake.attach()
            while True:
                wake.clear()
                waiting.set()
                await wake.wait(60.0)

        task = asyncio.create_task(run())
        await waiting.wait()
        wake.set()
        for _ in range(steps):  # of the loop, between the wake-up and the cancel
            await asyncio.sleep(0)
        task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert task.cancelled()

    asyncio.run(main())


def test_a_task_that_fails_at_its_end_does_not_start_again() -> None:
    async def main() -> int:
        began = asyncio.Event()

        async def run(_: Turn) -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                raise KeyError("at its end")

        supervisor = Supervisor()
        supervisor.start("stubborn", run)
        await began.wait()
        await supervisor.stop()
        return supervisor.tasks["stubborn"].failures

    assert asyncio.run(asyncio.wait_for(main(), 20)) == 1


def test_a_protected_fault_expires_and_one_that_cannot_be_read_stops_no_other(
    service: Service, eventually: Eventually
) -> None:
    """Deletion protection kept faults on for ever, and ended all maintenance with them."""
    api = service.admin
    body = {"metadata": {"deletion_protection": True}, "spec": {"drop": 0.1, "expires_s": 3600}}
    allowed = api.patch("/api/v1/transports/multicast", json={"spec": {"allow_faults": True}})
    assert allowed.status_code == 200
    assert api.put("/api/v1/faults/multicast", json=body).status_code == 201
    with service.ctx.db.begin() as session:
        session.execute(
            text(
                "INSERT INTO resources SELECT gen_random_uuid(), kind, 'a', labels, owner, "
                'description, false, managed_by, \'{"expires_s": "soon"}\', number, generation, '
                "version, created_at, updated_at, updated_by FROM resources WHERE kind = 'fault'"
            )
        )
        session.execute(
            text(
                "UPDATE resources SET spec = spec || '{\"expires_s\": 0.001}' "
                "WHERE kind = 'fault' AND name = 'multicast'"
            )
        )
    names = "SELECT name FROM resources WHERE kind = 'fault'"

    def left() -> list[str]:
        with service.ctx.db.begin() as session:
            return list(session.execute(text(names)).scalars())

    eventually(lambda: left() == ["a"], "the end of the fault")
    assert service.ctx.supervisor.checks()["faults"].startswith("ValueError: fault a: ")


def test_a_sample_that_cannot_be_read_hides_no_other_engine() -> None:
    """A TypeError in one engine's telemetry froze the page of all of them."""
    sound: dict[str, Any] = {
        "mono_ns": 1,
        "counters": {},
        "publications": [],
        "images": [],
        "receivers": [],
        "subscriptions": {},
        "clients": 3,
    }
    bad = {**sound, "publications": None}
    world, problems = build_sound([Source("a", None, bad), Source("b", None, sound)])
    assert {name: node["clients"] for name, node in world.nodes.items()} == {"b": 3}
    assert [*problems] == ["a"]


def _denial(n: int = 0, **told: Any) -> Denial:
    values: dict[str, Any] = {
        "actor": "",
        "actor_kind": "anonymous",
        "route": "POST /x",
        "action": f"POST /x/{n}",
        "status": 401,
        "code": "unauthenticated",
        "detail": "",
        "request_id": str(n),
        "address": "10.0.0.1",
        "network": "10.0.0.1",
    }
    return Denial(**{**values, **told})


def test_a_flood_of_denials_is_a_few_rows(service: Service) -> None:
    """300 requests without a login made 300 rows, which are kept for 400 days."""
    now_s = [0.0]
    denials = Denials(service.ctx.db, lambda: now_s[0])
    for n in range(300):
        denials.note(_denial(n))
    denials.flush()
    now_s[0] = 61.0
    denials.flush()
    rows = service.admin.get("/api/v1/audit?outcome=denied").json()["items"]
    assert [row["action"] for row in rows] == ["POST /x/0", "POST /x/0"]
    assert "299 times more" in rows[0]["detail"]
    for n in range(10 * KINDS_MAX):
        denials.note(_denial(n, network=str(n)))
    denials.flush(windows_end=True)
    rows = service.admin.get("/api/v1/audit?outcome=denied&limit=500&count=true").json()
    assert rows["total"] == 2 + KINDS_MAX + 1
    assert rows["items"][0]["action"] == "other denials"


def test_a_flush_returns_once_what_another_thread_stores_is_stored(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit that a caller read behind its flush lacked the denial that the task had taken."""
    denials, begin = Denials(service.ctx.db, lambda: 0.0), service.ctx.db.begin
    taken, go, over = threading.Event(), threading.Event(), threading.Event()

    def late() -> Any:
        taken.set()
        assert go.wait(60)
        return begin()

    def flush() -> None:
        denials.flush()
        over.set()

    denials.note(_denial())
    monkeypatch.setattr(service.ctx.db, "begin", late)
    threads = [threading.Thread(target=each) for each in (denials.flush, flush)]
    threads[0].start()
    assert taken.wait(20)
    monkeypatch.setattr(service.ctx.db, "begin", begin)
    threads[1].start()
    assert not over.wait(0.2), "the row is in no table yet"
    go.set()
    assert over.wait(20)
    rows = service.admin.get("/api/v1/audit?outcome=denied").json()["items"]
    assert [row["action"] for row in rows] == ["POST /x/0"]
    for each in threads:
        each.join(20)


def test_repeats_of_a_denial_name_their_reasons(service: Service) -> None:
    denials = Denials(service.ctx.db, lambda: 0.0)
    details = ["no token", "no token", *["key k was revoked"] * 3]
    for detail in details:
        denials.note(_denial(detail=detail))
    for n in range(KINDS_MAX + 20):
        denials.note(_denial(network=str(n), code="forbidden", detail=f"no right {n}"))
    denials.flush(windows_end=True)
    rows = service.admin.get("/api/v1/audit?outcome=denied&limit=500").json()["items"]
    others = next(row["detail"] for row in rows if row["action"] == "other denials")
    assert others.startswith("denied: beyond 500 kinds (21 times more within 60 s: ")
    assert "1 x forbidden: no right 506" in others
    assert "13 x other reasons" in others
    repeated = [row["detail"] for row in rows if "4 times more" in row["detail"]]
    assert len(repeated) == 1
    assert repeated[0] == (
        "unauthenticated: no token (4 times more within 60 s: "
        "3 x unauthenticated: key k was revoked; 1 x unauthenticated: no token)"
    )


def test_anonymous_requests_flood_no_audit(service: Service) -> None:
    client = service.client()
    for n in range(50):
        assert client.post(f"/api/v1/topics/t{n}/pause").status_code == 401
    service.ctx.denials.flush(windows_end=True)
    rows = service.admin.get("/api/v1/audit?outcome=denied").json()["items"]
    assert len(rows) == 2
    assert "49 times more" in rows[0]["detail"]
