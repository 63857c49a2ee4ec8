"""TLS of the service with a certificate of our own making: pages, programs, engines."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.conftest import Eventually
from tests.support.control import running
from tests.support.fake_link import FakeLink
from tidecast_control.settings import Settings, load_settings


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(certificate, key) for 127.0.0.1."""
    directory = tmp_path_factory.mktemp("tls")
    made, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", key, "-out", made],
        check=True, capture_output=True,
    )  # fmt: skip
    return made, key


def test_https_and_an_engine_over_wss(
    settings: Settings, template: Any, certificate: tuple[Path, Path], eventually: Eventually
) -> None:
    secured = load_settings(
        database_url=settings.database_url,
        data_dir=settings.data_dir,
        port=0,
        tls_certificate=certificate[0],
        tls_key=certificate[1],
        alert_interval_s=300,
    )
    trust = ssl.create_default_context(cafile=str(certificate[0]))
    with running(secured, template.login, verify=trust) as control:
        assert control.url.startswith("https://")
        with pytest.raises(httpx.ConnectError):
            httpx.get(control.url + "/health/live", timeout=30)
        assert control.api.get("/system").status_code == 200
        body = {"user": "admin", "password": "correct horse battery"}
        answer = httpx.post(control.url + "/api/v1/auth/login", json=body, verify=trust, timeout=30)
        assert "Secure" in answer.headers["set-cookie"]
        with FakeLink(control, "far", ssl=trust) as link:
            assert link.welcome["credential"].startswith("tcn_")
            eventually(
                lambda: control.api.get("/nodes/far").json()["status"]["state"] == "up", "far"
            )
