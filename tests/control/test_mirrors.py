"""Mirrors of the service: rules, secrets, their processes and how they end, alerts, metrics."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import text
from sqlmodel import select
from starlette.testclient import TestClient

from tests.conftest import Eventually
from tests.support.control import Service, service_of
from tidecast.mirror.settings import Job
from tidecast_control.alerts.evaluate import measured_of_mirrors
from tidecast_control.kit import repository as resources
from tidecast_control.kit.models import utc_now
from tidecast_control.mirrors import copying, repository, secrets
from tidecast_control.mirrors.models import MirrorSecretRow, MirrorStateRow
from tidecast_control.mirrors.service import job_of
from tidecast_control.settings import Settings
from tidecast_control.vault import Unopened, Vault

SPEC = {"topic": "orders", "servers": "127.0.0.1:9092", "kafka_topic": "orders"}
STREAMS = {
    "direction": "from_jetstream",
    "topic": "orders",
    "servers": "127.0.0.1:4222",
    "streams": "ORDERS",
}
SAY = """
import json, sys, time
job = json.loads(sys.stdin.readline())
say = lambda event, **about: print(json.dumps({"event": event, **about}), flush=True)
def progress(records, lag=0, retries=0):
    say("progress", records=records, bytes=records * 10, repeated=0, gone=0, left_out=2 * records,
        retries=retries, lag=lag, queues=[{"source": 0, "position": records, "durable": records,
                                           "end": records + lag}])
"""
FOLLOW = SAY + "progress(7, lag=3); sys.stdin.read()"
Script = Callable[[str], None]


@pytest.fixture
def script(service: Service) -> Script:
    """Have the service start a Python text instead of a mirror."""

    def use(source: str) -> None:
        service.ctx.mirrors.command = (sys.executable, "-c", textwrap.dedent(source))

    return use


def _put(api: TestClient, name: str = "m", **spec: Any) -> Any:
    return api.put(f"/api/v1/mirrors/{name}", json={"spec": SPEC | spec})


def _status(api: TestClient, name: str = "m") -> Any:
    return api.get(f"/api/v1/mirrors/{name}").json()["status"]


def _until(
    eventually: Eventually, api: TestClient, holds: Callable[[Any], object], what: str
) -> Any:
    eventually(lambda: holds(_status(api)), what, timeout_s=60)
    return _status(api)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_mirror_is_started_shown_paused_and_resumed(
    service: Service, script: Script, eventually: Eventually
) -> None:
    api = service.admin
    script(FOLLOW)
    assert _put(api).status_code == 201
    found = _until(eventually, api, lambda s: s["state"] == "running", "progress")
    assert (found["records"], found["lag"], found["position"]) == ("7", "3", "7")
    assert found["left_out"] == "14"
    assert found["queues"] == [{"source": 0, "position": "7", "durable": "7", "end": "10"}]
    process = service.ctx.mirrors.copies["m"].process
    assert process is not None
    plan = api.post("/api/v1/mirrors/m/pause?dry_run=true").json()
    assert (plan["action"], plan["dry_run"], plan["state"]) == ("pause", True, "done")
    assert _status(api)["state"] == "running"
    done = api.post("/api/v1/mirrors/m/pause").json()
    assert (done["dry_run"], done["cli"]) == (False, "tidecast mirror pause m")
    assert _status(api)["state"] == "paused"
    eventually(lambda: process.returncode == 0, "the end of its process")
    api.post("/api/v1/mirrors/m/resume")
    found = _until(eventually, api, lambda s: s["records"] == "14", "a second run")
    assert (found["failures"], found["left_out"]) == (0, "28")
    samples = api.get("/api/v1/mirrors/m/progress").json()
    assert samples["mirror"] == "m"
    assert len(samples["at_s"]) == len(samples["rate"]) == len(samples["lag"]) >= 1
    actions = [e["action"] for e in api.get("/api/v1/audit?kind=mirror&name=m").json()["items"]]
    assert actions == ["resume", "update", "pause", "update", "create"]
    operations = api.get("/api/v1/operations?name=m").json()["items"]
    assert [each["action"] for each in operations] == ["resume", "pause", "pause"]
    assert api.delete("/api/v1/mirrors/m").json()["action"] == "delete"
    eventually(lambda: not service.ctx.mirrors.copies, "its end")
    eventually(lambda: not _states(service), "its state is deleted")


def _states(service: Service) -> dict[str, MirrorStateRow]:
    with service.ctx.db.begin() as session:
        return repository.states(session)


def test_a_state_of_no_mirror_is_deleted(service: Service) -> None:
    with service.ctx.db.begin() as session:
        session.add(MirrorStateRow(mirror="gone", holder="other"))
    service.ctx.mirrors._take()
    assert _states(service) == {}


def test_a_killed_process_begins_again_with_its_counts(
    service: Service, script: Script, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "RETRY_S_MIN", 600.0)  # until `resume`
    monkeypatch.setattr(copying, "RETRY_S_MAX", 600.0)
    api = service.admin
    script(FOLLOW)
    _put(api)
    _until(eventually, api, lambda s: s["state"] == "running", "progress")
    process = service.ctx.mirrors.copies["m"].process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    found = _until(eventually, api, lambda s: s["failures"] == 1, "its end is noted")
    assert "SIGKILL" in found["error"]
    api.post("/api/v1/mirrors/m/resume")
    found = _until(eventually, api, lambda s: s["records"] == "14", "it copies again")
    assert found["error"] == ""
    second = service.ctx.mirrors.copies["m"].process
    assert second is not None
    assert second.pid != process.pid


def test_why_it_cannot_copy_is_said_and_resume_tries_at_once(
    service: Service, script: Script, eventually: Eventually
) -> None:
    api = service.admin
    script(
        SAY + "say('SourceAway', text='broker away'); "
        "say('failed', text='no such topic', code='not_found', retryable=False); sys.exit(1)"
    )
    _put(api)
    found = _until(eventually, api, lambda s: s["state"] == "waiting", "it waits")
    assert found["error"] == "no such topic"
    assert found["retry_at"] > found["error_at"]
    newest = found["events"][0]
    assert (newest["event"], newest["text"]) == ("SourceAway", "broker away")
    script(FOLLOW)
    service.ctx.mirrors.copies["m"]._command = service.ctx.mirrors.command
    api.post("/api/v1/mirrors/m/resume")
    _until(eventually, api, lambda s: s["state"] == "running" and not s["error"], "it copies")
    script("import sys; sys.stderr.write('Traceback\\nBoom: no memory\\n'); sys.exit(7)")
    api.patch("/api/v1/mirrors/m", json={"spec": {"rate": 5}})
    _until(eventually, api, lambda s: s["error"] == "Boom: no memory", "another end")


def test_records_of_the_last_moment_are_counted(
    service: Service, script: Script, eventually: Eventually
) -> None:
    script(FOLLOW + "; progress(11)")
    _put(service.admin)
    _until(eventually, service.admin, lambda s: s["state"] == "running", "progress")
    service.admin.post("/api/v1/mirrors/m/pause")
    _until(eventually, service.admin, lambda s: s["records"] == "11", "the last figures")


def test_a_change_begins_anew_and_labels_do_not(
    service: Service, script: Script, eventually: Eventually
) -> None:
    api = service.admin
    script(SAY + "progress(job['rate']); sys.stdin.read()")
    _put(api, rate=5)
    _until(eventually, api, lambda s: s["records"] == "5", "progress")
    first = service.ctx.mirrors.copies["m"]
    api.patch("/api/v1/mirrors/m", json={"metadata": {"labels": {"a": "b"}}})
    api.patch("/api/v1/mirrors/m", json={"spec": {"rate": 100}})
    _until(eventually, api, lambda s: s["records"] == "105", "the new rate")
    assert service.ctx.mirrors.copies["m"] is not first


def test_a_hanging_or_noisy_process_is_no_harm(
    service: Service, script: Script, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "TERMINATE_S", 0.1)
    api = service.admin
    script(
        SAY + "print('no json'); print('[]'); print('{}'); say('progress'); progress(3)\n"
        "say('x' * 300, text='y' * 5000)\nwhile True: time.sleep(60)"
    )
    _put(api)
    found = _until(eventually, api, lambda s: s["events"], "an event")
    assert (found["records"], len(found["events"][0]["event"])) == ("3", 50)
    assert len(found["events"][0]["text"]) == 1000
    process = service.ctx.mirrors.copies["m"].process
    assert process is not None
    api.delete("/api/v1/mirrors/m")
    eventually(lambda: not _alive(process.pid), "its end")


def test_a_service_that_stops_while_a_mirror_ends_ends_it(
    settings: Settings, template: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "TERMINATE_S", 0.5)
    with service_of(settings) as service:
        template.login.put_on(service.admin)
        hangs = SAY + "progress(3)\nwhile True: time.sleep(60)"
        service.ctx.mirrors.command = (sys.executable, "-c", hangs)
        _put(service.admin)
        _until(eventually, service.admin, lambda s: s["state"] == "running", "progress")
        copy = service.ctx.mirrors.copies["m"]
        process = copy.process
        service.admin.delete("/api/v1/mirrors/m")
        eventually(lambda: copy.process is None, "the beginning of its end")
    assert process is not None
    assert process.returncode is not None


def test_a_restart_of_the_service_keeps_it(
    settings: Settings, template: Any, eventually: Eventually
) -> None:
    with service_of(settings) as service:
        template.login.put_on(service.admin)
        service.ctx.mirrors.command = (sys.executable, "-c", FOLLOW)
        _put(service.admin, user="shop", secret="p4ss", rate=3)
        _until(eventually, service.admin, lambda s: s["state"] == "running", "progress")
        process = service.ctx.mirrors.copies["m"].process
    assert process is not None
    assert process.returncode == 0
    with service_of(settings) as service:
        template.login.put_on(service.admin)
        service.ctx.mirrors.command = (sys.executable, "-c", FOLLOW)
        _until(eventually, service.admin, lambda s: int(s["records"]) > 7, "it goes on")
        assert json.loads(service.ctx.mirrors.copies["m"].job)["secret"] == "p4ss"


def test_one_service_has_it_at_a_time(service: Service) -> None:
    with service.ctx.db.begin() as session:
        assert repository.take(session, ["a", "b"], "one", 60) == {"a", "b"}
        assert repository.take(session, ["a", "b"], "two", 60) == set()
        repository.keep(session, "two", "a", {"records": 9})
        repository.release(session, "one", ["a"])
        assert repository.take(session, ["a", "b"], "two", 60) == {"a"}
    with service.ctx.db.begin() as session:
        session.execute(text("UPDATE mirror_states SET held_until = now() - interval '1 s'"))
        assert repository.take(session, ["a", "b"], "two", 60) == {"a", "b"}
        assert repository.states(session)["a"].records == 0


def test_no_more_run_than_allowed(service: Service, script: Script, eventually: Eventually) -> None:
    script(FOLLOW)
    service.ctx.mirrors._max = 1
    _put(service.admin, "a")
    _put(service.admin, "b")
    eventually(
        lambda: "TIDECAST_CONTROL_MIRRORS_MAX" in _status(service.admin, "b")["error"],
        "the second one waits",
    )
    service.admin.post("/api/v1/mirrors/a/pause")
    eventually(lambda: _status(service.admin, "b")["state"] == "running", "it runs", timeout_s=30)


# --- what is refused ------------------------------------------------------------------------------

WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"servers": "nowhere"}, "/spec/servers"),
    ({"servers": "kafka://a:1/t"}, "/spec/servers"),
    ({"kafka_topic": "a b"}, "/spec/kafka_topic"),
    ({"topic": ""}, "/spec/topic"),
    ({"user": "u"}, "/spec/secret"),
    ({"secret": "x"}, "/spec/user"),
    ({"secret": "********-0123456789ab", "user": "u"}, "/spec/secret"),
    ({"ca": "text"}, "/spec/ca"),
    ({"ca": "-----BEGIN CERTIFICATE-----"}, "/spec/tls"),
    ({"rate": -1}, "/spec/rate"),
    ({"rate": 1 << 40}, "/spec/rate"),
    ({"direction": "both"}, "/spec/direction"),
    ({"gateway": "http://a"}, "/spec/gateway"),
    ({"direction": "to_kafka", "gateway": "tidecast://a:1"}, "/spec/gateway"),
    ({"direction": "to_kafka", "place": "key"}, "/spec/place"),
    ({"mechanism": "GSSAPI"}, "/spec/mechanism"),
    ({"secret_file": "/etc/passwd"}, "/spec/secret_file"),
    ({"kafka_topic": ""}, "/spec/kafka_topic"),
    ({"streams": "ORDERS"}, "/spec/streams"),
    ({**STREAMS}, "/spec/kafka_topic"),
    ({**STREAMS, "kafka_topic": "", "streams": ""}, "/spec/streams"),
    ({**STREAMS, "kafka_topic": "", "streams": "a.b"}, "/spec/streams"),
    ({**STREAMS, "kafka_topic": "", "servers": "nowhere"}, "/spec/servers"),
    ({**STREAMS, "kafka_topic": "", "subjects": "a.>,a.b"}, "/spec/subjects"),
    ({**STREAMS, "kafka_topic": "", "domain": "a.b"}, "/spec/domain"),
    ({**STREAMS, "kafka_topic": "", "key_header": "a:b"}, "/spec/key_header"),
    ({**STREAMS, "kafka_topic": "", "user": "u"}, "/spec/secret"),
)


def test_a_mirror_from_jetstream_is_planned_made_and_its_secret_sealed(service: Service) -> None:
    api = service.admin
    spec = STREAMS | {"user": "u", "secret": "hidden", "paused": True, "domain": "hub"}
    plan = api.put("/api/v1/mirrors/s?dry_run=true", json={"spec": spec}).json()
    assert (plan["action"], plan["warnings"]) == (
        "create",
        [
            "the secret crosses the network readable: use tls",
            "the service has no topic 'orders': the mirror waits, unless its engine has one",
        ],
    )
    topic = {"spec": {"mode": "durable"}}
    assert api.put("/api/v1/topics/orders", json=topic).status_code == 201
    plan = api.put("/api/v1/mirrors/s?dry_run=true", json={"spec": spec}).json()
    assert len(plan["warnings"]) == 1
    made = api.put("/api/v1/mirrors/s", json={"spec": spec})
    assert made.status_code == 201, made.text
    assert "hidden" not in made.text
    wrong = api.patch("/api/v1/mirrors/s", json={"spec": {"streams": "OTHER"}})
    assert wrong.json()["errors"][0]["pointer"] == "/spec/streams"
    with service.ctx.db.begin() as session:
        (row,) = resources.all_of(session, "mirror")
        job = msgspec.json.decode(job_of(session, row, Path("/data")), type=Job)
    assert (job.direction, job.secret, job.kafka) == ("from_jetstream", "hidden", {})
    assert job.jetstream == {
        "servers": "127.0.0.1:4222",
        "streams": "ORDERS",
        "user": "u",
        "domain": "hub",
    }


def test_a_mirror_of_an_earlier_version_is_shown_edited_and_run(service: Service) -> None:
    """Its spec in the database has no settings of JetStream."""
    api = service.admin
    _put(api, paused=True)
    fields = ("streams", "subjects", "domain", "key_header")
    with service.ctx.db.begin() as session:
        (row,) = resources.all_of(session, "mirror")
        row.spec = {name: value for name, value in row.spec.items() if name not in fields}
        session.add(row)
    assert api.get("/api/v1/mirrors/m").json()["spec"]["streams"] == ""
    assert api.patch("/api/v1/mirrors/m", json={"spec": {"rate": 7}}).status_code == 200
    with service.ctx.db.begin() as session:
        (row,) = resources.all_of(session, "mirror")
        job = msgspec.json.decode(job_of(session, row, Path("/data")), type=Job)
    assert (job.rate, job.kafka["topic"], job.jetstream) == (7, "orders", {})


@pytest.mark.parametrize(("spec", "pointer"), WRONG)
def test_wrong_settings_name_their_field(service: Service, spec: Any, pointer: str) -> None:
    answer = _put(service.admin, paused=True, **spec)
    assert answer.status_code == 422, answer.text
    assert pointer in [each["pointer"] for each in answer.json()["errors"]]
    assert service.admin.get("/api/v1/mirrors").json()["items"] == []


def test_topics_and_direction_are_fixed_and_names_are_short(service: Service) -> None:
    api = service.admin
    _put(api, paused=True)
    for change in ({"topic": "other"}, {"kafka_topic": "x"}, {"direction": "to_kafka"}):
        answer = api.patch("/api/v1/mirrors/m", json={"spec": change})
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["pointer"] == f"/spec/{next(iter(change))}"
    assert api.patch("/api/v1/mirrors/m", json={"spec": {"servers": "b:1"}}).status_code == 200
    long = _put(api, "m" * 101, paused=True)
    assert long.json()["errors"][0]["pointer"] == "/metadata/name"
    warned = _put(api, "p", paused=True, user="u", secret="s", mechanism="PLAIN")
    assert warned.status_code == 201
    plan = api.put(
        "/api/v1/mirrors/p?dry_run=true",
        json={"spec": SPEC | {"user": "u", "secret": "s", "mechanism": "PLAIN"}},
    ).json()
    assert "readable" in plan["warnings"][0]


# --- secrets --------------------------------------------------------------------------------------


def _secret_rows(service: Service) -> dict[str, MirrorSecretRow]:
    with service.ctx.db.begin() as session:
        rows = session.exec(select(MirrorSecretRow)).all()
        return {row.field: row for row in rows}


def _job(service: Service, name: str = "m") -> Job:
    import msgspec

    with service.ctx.db.begin() as session:
        row = resources.find(session, "mirror", name)
        assert row is not None
        return msgspec.json.decode(job_of(session, row, Path("/d")), type=Job)


def test_secrets_are_sealed_masked_and_kept(service: Service) -> None:
    api = service.admin
    login = {"user": "shop", "secret": "p4ssword", "gateway": "tidecast://a:1", "token": "k3y"}
    made = _put(api, paused=True, **login)
    shown = made.json()["spec"]
    everything = made.text + api.get("/api/v1/audit").text + api.get("/api/v1/export").text
    assert "p4ssword" not in everything
    assert "k3y" not in everything
    rows = _secret_rows(service)
    assert all(row.value.startswith("sealed1:") for row in rows.values())
    assert (_job(service).secret, _job(service).token) == ("p4ssword", "k3y")
    again = _put(api, paused=True, **login)
    assert again.json()["metadata"]["generation"] == 1  # a repeat changes nothing
    assert api.put("/api/v1/mirrors/m", json=made.json()).json()["spec"] == shown
    api.patch("/api/v1/mirrors/m", json={"spec": {"secret": "an0ther"}})
    assert _job(service).secret == "an0ther"
    assert (
        api.patch("/api/v1/mirrors/m", json={"spec": {"secret": shown["secret"]}}).json()["errors"][
            0
        ]["pointer"]
        == "/spec/secret"
    )
    api.delete("/api/v1/mirrors/m")
    assert _secret_rows(service) == {}


@pytest.mark.parametrize(
    "change",
    [
        {"servers": "evil:9092"},
        {"user": "other"},
        {"mechanism": "PLAIN"},
        {"tls": True},
    ],
)
def test_a_secret_is_given_again_for_another_server(service: Service, change: Any) -> None:
    api = service.admin
    _put(api, paused=True, user="shop", secret="p4ssword")
    for query in ("?dry_run=true", ""):
        answer = api.patch(f"/api/v1/mirrors/m{query}", json={"spec": change})
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["pointer"] == "/spec/secret"
    whole = change | {"secret": "p4ssword"}
    assert api.patch("/api/v1/mirrors/m", json={"spec": whole}).status_code == 200
    assert _job(service).secret == "p4ssword"


def test_a_plan_keeps_no_secret(service: Service) -> None:
    body = {"spec": SPEC | {"user": "shop", "secret": "p4ssword", "paused": True}}
    plan = service.admin.put("/api/v1/mirrors/m?dry_run=true", json=body)
    assert plan.json()["action"] == "create"
    assert "p4ssword" not in plan.text
    assert _secret_rows(service) == {}


def test_lost_keys_of_the_vault(service: Service, eventually: Eventually) -> None:
    api = service.admin
    _put(api, paused=True, user="shop", secret="p4ssword")
    with service.ctx.db.begin() as session:
        session.info["vault"] = Vault([b"x" * 32])
        with pytest.raises(Unopened):
            secrets.reseal(session, forget=False)
        secrets.reseal(session, forget=True)
    api.post("/api/v1/mirrors/m/resume")
    found = _until(eventually, api, lambda s: s["error"], "it says so")
    assert (found["state"], found["error"]) == ("waiting", "secret: it is lost, give it again")


# --- alerts, metrics, rights ----------------------------------------------------------------------


def test_alerts_and_metrics_have_mirrors(service: Service) -> None:
    api = service.admin
    _put(api)
    _put(api, "still", paused=True)
    rule = {"metric": "mirror_failed", "for_s": 0}
    assert api.put("/api/v1/alert-rules/r", json={"spec": rule}).status_code == 201
    with service.ctx.db.begin() as session:
        session.execute(text("DELETE FROM mirror_states"))
        later = utc_now() + timedelta(hours=1)
        for name in ("m", "still"):
            state = MirrorStateRow(
                mirror=name, holder="other", held_until=later, state="waiting", error="why", lag=9
            )
            session.add(state)
    with service.ctx.db.begin() as session:
        assert measured_of_mirrors(session, "mirror_failed").values == {"m": 1.0}
        assert measured_of_mirrors(session, "mirror_lag").values == {"m": 9.0}
    shown = api.get("/metrics").text
    assert 'tidecast_mirror_up{mirror="m"} 0.0' in shown
    assert 'tidecast_mirror_lag_records{mirror="m"} 9.0' in shown
    assert 'tidecast_mirror_failures_total{mirror="m"} 0.0' in shown
    assert 'tidecast_mirror_left_out_total{mirror="m"} 0.0' in shown


def test_rights_are_those_of_the_effect(service: Service) -> None:
    manage = [{"pattern": "orders", "rights": ["manage"]}]
    key = service.key("k", role="operator", scopes=manage)
    assert "`publish` on orders" in _put(key).json()["detail"]
    out = _put(key, direction="to_kafka").json()["detail"]
    assert "`read_payloads` on orders" in out
    streams = key.put("/api/v1/mirrors/s", json={"spec": STREAMS}).json()["detail"]
    assert "`publish` on orders" in streams
    assert _put(key, paused=True).status_code == 201
    assert key.post("/api/v1/mirrors/m/resume").status_code == 403
    assert key.post("/api/v1/mirrors/m/pause").status_code == 200
    other = service.key(
        "o", role="operator", scopes=[{"pattern": "x", "rights": ["manage", "publish"]}]
    )
    assert other.post("/api/v1/mirrors/m/pause").status_code == 404
    assert other.get("/api/v1/mirrors").json()["items"] == []
    assert other.get("/api/v1/operations").json()["items"] == []


def test_text_that_postgres_does_not_take_keeps_no_other_figures_out(
    service: Service, script: Script, eventually: Eventually
) -> None:
    """A server may answer with anything, and its words are in the error."""
    script(
        SAY
        + """
if job["name"] == "bad":
    say("Odd", text="a\\0b")
    say("failed", text="its server said \\0")
    sys.exit(1)
progress(7)
sys.stdin.read()
"""
    )
    _put(service.admin, "bad")
    _put(service.admin, "good")
    eventually(lambda: _status(service.admin, "good")["records"] == "7", "its figures")
    eventually(lambda: "its server" in _status(service.admin, "bad")["error"], "its error")


def test_a_mirror_whose_task_fails_begins_again(
    service: Service, script: Script, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was shown as it was before, for ever."""
    failures, once = [RuntimeError("a defect")], copying.Copy._once

    async def fails_once(copy: copying.Copy) -> None:
        if failures:
            raise failures.pop()
        await once(copy)

    monkeypatch.setattr(copying.Copy, "_once", fails_once)
    script(FOLLOW)
    _put(service.admin)
    eventually(lambda: _status(service.admin)["state"] == "running", "progress")


def test_the_state_of_a_mirror_that_another_service_took_just_now_is_kept(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This service read the mirrors before that one was made."""
    forget = repository.forget_others

    def later(session: Any, *arguments: Any) -> None:
        service.admin.put("/api/v1/mirrors/new", json={"spec": SPEC | {"paused": True}})
        with service.ctx.db.begin() as other:
            repository.take(other, ["new"], "another", 60)
        forget(session, *arguments)

    monkeypatch.setattr(repository, "forget_others", later)
    service.ctx.mirrors._take()
    assert _states(service)["new"].holder == "another"
