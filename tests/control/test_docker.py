"""docker/: as far as no daemon is needed: every file, command, option and setting is there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.project import ROOT
from tidecast_control.settings import Settings

DOCKER = ROOT / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
OF_TIDECAST = [n for n, s in COMPOSE["services"].items() if s["image"] == "tidecast"]


def _instructions() -> list[tuple[str, str]]:
    text = (DOCKER / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_image_copies_what_exists_and_does_not_run_as_root() -> None:
    steps = _instructions()
    for word, rest in steps:
        assert re.fullmatch(r"FROM|RUN|WORKDIR|COPY|USER|ENV|VOLUME|ENTRYPOINT|CMD", word), word
        if word == "COPY" and "--from" not in rest:
            *sources, _ = shlex.split(rest)
            assert all((ROOT / source).exists() for source in sources), rest
        if word == "FROM":
            assert ":" in rest, f"{rest}: no tag"
    users = [rest for word, rest in steps if word == "USER"]
    assert users == ["tidecast"]
    assert (ROOT / "frontend" / "package-lock.json").exists()


def test_what_compose_refers_to_is_there() -> None:
    services: dict[str, Any] = COMPOSE["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= services.keys(), name
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            if source.startswith("./"):
                assert (DOCKER / source).exists(), source
            else:
                assert source in COMPOSE["volumes"], source
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name}: {port} is open to the network"
    environment = services["control"]["environment"]
    prefix = "TIDECAST_CONTROL_"
    fields = {f"{prefix}{field.upper()}" for field in Settings.model_fields}
    assert {e for e in environment if e.startswith(prefix)} <= fields
    assert services["grafana"]["depends_on"] == ["prometheus"]
    targets = yaml.safe_load((DOCKER / "prometheus.yaml").read_text())["scrape_configs"]
    assert targets[0]["static_configs"] == [{"targets": ["127.0.0.1:7480"]}]


@pytest.mark.parametrize("name", OF_TIDECAST)
def test_commands_and_options_exist(name: str) -> None:
    service = COMPOSE["services"][name]
    words = service["command"]
    if service.get("entrypoint") == ["sh", "-c"]:
        words = shlex.split(words[0].replace("$$(cat /enrol/enrol.token)", "token"))
        words = [word for word in words if not word.startswith("TIDECAST_")]
        assert words[:2] == ["exec", "tidecast"]
        words = words[2:]
    shown = subprocess.run(
        [sys.executable, "-m", "tidecast.cli", words[0], "--help"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    options = [word for word in words if word.startswith("--")]
    assert options
    assert all(option in shown for option in options), options
