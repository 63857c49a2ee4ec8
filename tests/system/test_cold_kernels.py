"""A client whose kernels are in no cache: none of them is compiled in its event loop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.gateways import Served
from tests.support.lab import Lab

PROGRAM = """
import asyncio, json, os, sys, threading
import tidecast
from numba.core import event

loop_thread, step, compiled = threading.get_ident(), "", []

class Compiling(event.Listener):
    def on_start(self, about):
        if threading.get_ident() == loop_thread:
            compiled.append((step, str(about.data.get("dispatcher"))))
    def on_end(self, about):
        pass

event.register("numba:compile", Compiling())

async def main(url, token):
    global step
    step = "connect"
    async with tidecast.connect(url, token=token) as client:
        step = "live"
        async with client.subscribe("live") as messages:
            await client.publish("live", b"x", flush=True)
            await messages.next(timeout=60)
        step = "request"
        try:
            await client.request("nobody", b"x", timeout=5)
        except tidecast.NoResponders:
            pass
        step = "durable"
        await client.topics.ensure("orders", mode="durable")
        await client.publish("orders", b"x", key="k", ack="durable")
        step = "consume"
        async with client.consumer("orders", "billing") as consumer:
            await (await consumer.next(timeout=60)).ack()
            await client.publish_batch("orders", [b"x"] * 10, keys=["k"] * 10)
            (await consumer.fetch(10, max_wait=60)).ack()
            step = "leave"
        step = "close"

asyncio.run(main(*sys.argv[1:3]))
print(json.dumps(compiled))
"""


@pytest.mark.long
@pytest.mark.parametrize("remote", [False, True], ids=["socket", "gateway"])
def test_no_kernel_is_compiled_in_the_event_loop(lab: Lab, tmp_path: Path, remote: bool) -> None:
    served = Served(lab)
    here = f"tidecast://{served.platform.directory}"
    url = f"tidecast://127.0.0.1:{served.port}" if remote else here
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, served.token if remote else ""],
        env=os.environ | {"TIDECAST_CACHE_DIR": str(tmp_path / "cold")},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
