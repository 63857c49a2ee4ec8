"""Ports of tests: one process has each, and no socket is on it."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys

import pytest
from tests.support import ports
from tests.support.process import ROOT


def given_back() -> int:
    """The number of a block that is free, for all."""
    port = ports.free_port()
    os.close(ports._held.pop())
    return (port - ports.FIRST) // ports.BLOCK


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_port_that_a_socket_has_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, kind: socket.SocketKind
) -> None:
    taken, free = given_back(), given_back()
    drawn = iter([taken, free])
    monkeypatch.setattr(secrets, "randbelow", lambda _: next(drawn))
    with socket.socket(socket.AF_INET, kind) as other:
        other.bind(("127.0.0.1", ports.FIRST + ports.BLOCK * taken + 1))
        assert ports.free_port() == ports.FIRST + ports.BLOCK * free


def test_a_port_that_another_process_was_given_is_passed_over() -> None:
    taken = (ports.free_port() - ports.FIRST) // ports.BLOCK
    free = given_back()
    code = (
        "import secrets; from tests.support import ports\n"
        f"drawn = iter([{taken}, {free}])\n"
        "secrets.randbelow = lambda _: next(drawn)\n"
        "print(ports.free_port())\n"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert other.stdout == f"{ports.FIRST + ports.BLOCK * free}\n", other.stderr
