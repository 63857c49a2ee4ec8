"""NATS JetStream from Python: nats-py beside one nats-server with a file stream of its own."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers import layout
from benchmarks.peers.nats_peer import start_server
from benchmarks.peers.process import Stage, rates

DEFAULTS: dict[str, Any] = {
    "message_bytes": 100,
    "sync_interval": "50ms",
    "pipelined": 2000,
    "batch": 1000,
    "ack_policy": "all",
    "messages": 60_000,
    "seconds": 4.0,
    "warmup_s": 0.5,
    "timeout_s": 60.0,
}

CASES: dict[str, tuple[dict[str, Any], ...]] = {
    "durable": ({"sync_interval": "50ms"},),
    "consume": ({"ack_policy": "all"}, {"ack_policy": "explicit"}),
}


def run(bench: str, config: dict[str, Any]) -> dict[str, float]:
    """One run; the metrics."""
    with Stage(config["timeout_s"]) as stage:
        folder = Path(tempfile.mkdtemp(prefix="tidecast-peer-"))  # on the disk, as our own logs
        try:
            settings = folder / "server.conf"
            settings.write_text(
                f'jetstream {{ store_dir: "{folder}", sync_interval: "{config["sync_interval"]}" }}'
            )
            channel = start_server(stage, "--config", str(settings))
            role = "publish" if bench == "durable" else "consume"
            given = json.dumps({**config, "channel": channel, "role": role})
            worker = str(layout.WORKERS / "jetstream_worker.py")
            started = stage.start_ready(role, (str(layout.VENV_PYTHON), worker, given))
            found = rates([stage.result(started)])
            for process in stage.workers:
                process.end()
            return found
        finally:
            shutil.rmtree(folder, ignore_errors=True)
