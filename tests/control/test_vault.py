"""Secrets in the database are sealed with a key that lies beside it."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlmodel import select

from tests.control.test_alerts import NOW, _evaluator, _rule, _world
from tests.support.control import Service, service_of
from tidecast.errors import ConfigError
from tidecast_control.alerts.models import DeliveryRow
from tidecast_control.alerts.secrets import call_place
from tidecast_control.settings import Settings
from tidecast_control.vault import FILE_NAME, KEY_BYTES, KEYS_MAX, Unopened, Vault, load_vault
from tidecast_control.wire_keys.service import for_engines

HOOK = "http://127.0.0.1:9/hooks/PRIVATE-PATH"
SIGNER = "whsec_" + "c2VjcmV0IG9mIHRoZSBzaWduZXIgLSAzMiBieXRlcw=="
KEYS = "/api/v1/transports/multicast/keys"


def stored(service: Service) -> str:
    """All rows of all tables as text."""
    with service.ctx.db.begin() as session:
        names = session.execute(
            text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        ).scalars()
        return "\n".join(
            str(row)
            for name in names.all()
            for row in session.execute(text(f"SELECT t::text FROM {name} t")).scalars()
        )


def secrets_of(service: Service) -> list[str]:
    """The secrets of the transport, as engines get them."""
    with service.ctx.db.begin() as session:
        return [each["secret_hex"] for each in for_engines(session).get("multicast", [])]


def calls_of(service: Service) -> list[tuple[str, str]]:
    """Address and secret of each call of a webhook that waits."""
    vault = service.ctx.db.vault
    assert vault is not None
    with service.ctx.db.begin() as session:
        return [
            (
                vault.open(each.url, call_place(each.id, "url")),
                vault.open(each.secret, call_place(each.id, "secret")),
            )
            for each in session.exec(select(DeliveryRow))
        ]


def with_secrets(service: Service) -> list[str]:
    """A transport with an epoch, and a webhook whose call waits; all their secrets."""
    assert service.admin.post(f"{KEYS}/rotate?at_once=true").status_code == 200
    _rule(service, webhook=HOOK, webhook_secret=SIGNER)
    _evaluator(service).step(_world(0.9), NOW)
    return [HOOK, "PRIVATE-PATH", SIGNER, *secrets_of(service)]


def test_no_secret_is_in_the_database(service: Service) -> None:
    secrets = with_secrets(service)
    assert len(secrets) == 4
    everything = stored(service)
    assert "sealed1:" in everything
    assert [each for each in secrets if each in everything] == []


def test_a_service_that_starts_again_opens_them(settings: Settings, template: Any) -> None:
    with service_of(settings) as first:
        template.login.put_on(first.admin)
        before = with_secrets(first)
    with service_of(settings) as again:
        template.login.put_on(again.admin)
        assert secrets_of(again) == before[3:]
        assert set(calls_of(again)) == {(HOOK, SIGNER)}


def test_secrets_of_an_older_release_are_sealed_at_the_start(
    settings: Settings, template: Any
) -> None:
    with service_of(settings) as first:
        template.login.put_on(first.admin)
        with_secrets(first)
        with first.ctx.db.begin() as session:
            session.execute(text(f"UPDATE wire_epochs SET secret = '{'ab' * 32}'"))
            session.execute(text(f"UPDATE webhook_secrets SET value = '{HOOK}'"))
            session.execute(text(f"UPDATE webhook_deliveries SET url = '{HOOK}', secret = ''"))
    with service_of(settings) as again:
        assert secrets_of(again) == ["ab" * 32]
        everything = stored(again)
        assert "ab" * 32 not in everything
        assert HOOK not in everything


def test_a_new_key_on_top_seals_all_anew(settings: Settings, template: Any) -> None:
    path = settings.data_dir / FILE_NAME
    with service_of(settings) as first:
        template.login.put_on(first.admin)
        before = with_secrets(first)
    old = path.read_text()
    path.write_text("12" * KEY_BYTES + "\n" + old)
    with service_of(settings):
        pass
    path.write_text("12" * KEY_BYTES + "\n")
    with service_of(settings) as again:
        assert secrets_of(again) == before[3:]


def test_a_lost_key_is_named_and_can_be_given_up(settings: Settings, template: Any) -> None:
    path = settings.data_dir / FILE_NAME
    with service_of(settings) as first:
        template.login.put_on(first.admin)
        before = with_secrets(first)
    path.unlink()
    with (
        pytest.raises(ConfigError, match=r"secrets\.key: it lacks the key .*--forget-secrets"),
        service_of(settings),
    ):
        pass
    with service_of(settings.model_copy(update={"forget_secrets": True})) as again:
        template.login.put_on(again.admin)
        [new] = secrets_of(again)
        assert new not in before
        [epoch] = again.admin.get(KEYS).json()["epochs"]
        assert (epoch["epoch"], epoch["state"]) == (2, "active")
        assert "the URL is lost" in again.admin.get("/api/v1/alerts").text
        assert calls_of(again) == []
    with service_of(settings):  # nothing is left that the new key does not open
        pass


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "it has no key"),
        ("ab" * 31, "line 1: allowed are 64 hex digits"),
        ("ab" * 32 + "\nxyz\n", "line 2: allowed are 64 hex digits"),
        ("ab" * 32 + "\n" + "ab" * 33, "line 2: allowed are 64 hex digits"),
        ("\n".join(["ab" * 32] * (KEYS_MAX + 1)), f"17 keys: allowed are 1 to {KEYS_MAX}"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / FILE_NAME
    path.touch(mode=0o600)
    path.write_text(content)
    with pytest.raises(ConfigError, match=words) as problem:
        load_vault(path)
    assert "xyz" not in str(problem.value)


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    load_vault(tmp_path / FILE_NAME)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    (tmp_path / FILE_NAME).chmod(0o640)
    with pytest.raises(ConfigError, match="mode 640: others may read it; allowed is 600"):
        load_vault(tmp_path / FILE_NAME)


@given(st.text(), st.text(), st.text())
def test_a_secret_opens_at_its_place_alone(secret: str, place: str, other: str) -> None:
    vault = Vault([bytes(KEY_BYTES), bytes([1] * KEY_BYTES)])
    sealed = vault.seal(secret, place)
    assert vault.open(sealed, place) == secret
    assert vault.renew(sealed, place) == sealed
    if other != place:
        with pytest.raises(Unopened):
            vault.open(sealed, other)
    newer = Vault([bytes([1] * KEY_BYTES), bytes(KEY_BYTES)])
    renewed = newer.renew(sealed, place)
    assert renewed != sealed
    assert vault.open(renewed, place) == secret
    with pytest.raises(Unopened):
        Vault([bytes([2] * KEY_BYTES)]).open(sealed, place)


@given(st.integers(0, 200), st.characters(max_codepoint=127))
def test_a_changed_text_is_not_opened(at: int, sign: str) -> None:
    vault = Vault([bytes(KEY_BYTES)])
    sealed = vault.seal("secret of 32 bytes, say", "place")
    at %= len(sealed)
    changed = sealed[:at] + sign + sealed[at + 1 :]
    try:
        opened = vault.open(changed, "place")
    except Unopened:
        return
    # Without its mark it is a text of before; else base64 ignores bits behind the last byte.
    assert not changed.startswith("sealed1:") or opened == "secret of 32 bytes, say"


def test_of_two_services_that_make_the_file_both_have_one_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the secrets of the first are lost with its next start."""
    path, made, token = tmp_path / FILE_NAME, list[Vault](), secrets.token_hex

    def between(count: int) -> str:
        monkeypatch.setattr(secrets, "token_hex", token)
        made.append(load_vault(path))
        return token(count)

    monkeypatch.setattr(secrets, "token_hex", between)
    mine = load_vault(path)
    assert mine.open(made[0].seal("secret", "here"), "here") == "secret"
    assert [each.name for each in tmp_path.iterdir()] == [FILE_NAME]
