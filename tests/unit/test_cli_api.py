"""`tidecast api`: what it sends, and what it says when the service refuses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidecast.cli import main

PROBLEM = {
    "title": "The request is not valid",
    "status": 422,
    "detail": "one field",
    "errors": [{"pointer": "/spec/queues", "detail": "is 0", "allowed": "1 to 1024"}],
}


class Service(BaseHTTPRequestHandler):
    """Repeats what it is asked; refuses what has `wrong` in its path."""

    def do(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        refused = "wrong" in self.path
        answer = (
            PROBLEM
            if refused
            else {
                "asked": f"{self.command} {self.path}",
                "key": self.headers["Authorization"],
                "type": self.headers.get("Content-Type"),
                "body": self.rfile.read(length).decode(),
            }
        )
        self.send_response(422 if refused else 200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    do_GET = do_PUT = do_POST = do  # noqa: N815 (the names that http.server calls)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(5)


def _api(*words: str, key: str | None = "s3cret", stdin: str = "") -> Result:
    return CliRunner().invoke(main, ["api", *words], env={"TIDECAST_KEY": key}, input=stdin)


def test_a_request_is_sent_as_it_is_told(url: str, tmp_path: Path) -> None:
    shown = _api("GET", "/topics?q=md.", "--control", url)
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.output) == {
        "asked": "GET /api/v1/topics?q=md.",
        "key": "Bearer s3cret",
        "type": None,
        "body": "",
    }
    sent = json.loads(_api("PUT", "topics/a", "--control", url, "--data", '{"spec": {}}').output)
    assert sent["asked"] == "PUT /api/v1/topics/a"
    assert (sent["type"], sent["body"]) == ("application/json", '{"spec": {}}')
    file = tmp_path / "all.yaml"
    file.write_text("kind: topic\n")
    words = ("POST", "/api/v1/apply", "--control", url, "--type", "application/yaml", "--data")
    for data, stdin in ((f"@{file}", ""), ("@-", "kind: topic\n")):
        sent = json.loads(_api(*words, data, stdin=stdin).output)
        assert sent["asked"] == "POST /api/v1/apply"
        assert (sent["type"], sent["body"]) == ("application/yaml", "kind: topic\n")


def test_it_says_what_is_wrong(url: str) -> None:
    refused = _api("PUT", "/wrong", "--control", url, "--data", "{}")
    assert refused.exit_code == 1
    assert refused.output == (
        "error: 422: The request is not valid; one field; /spec/queues: is 0: allowed 1 to 1024\n"
    )
    assert "no key: set TIDECAST_KEY" in _api("GET", "/topics", "--control", url, key=None).output
    assert "http://" in _api("GET", "/topics", "--control", "localhost:7480").output
    nobody = _api("GET", "/topics", "--control", "http://127.0.0.1:9")
    assert nobody.exit_code == 1
    assert "does not answer" in nobody.output
    assert _api("GET", "/topics", "--control", url, "--data", "@/no/such").exit_code == 1
