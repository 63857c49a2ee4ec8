"""Which build runs a test: `make test` runs each once, and those of kernels in the checked build.

A checked build verifies every load and store (`TIDECAST_BOUNDSCHECK=1`), so it is the stronger one
for what kernels compute. The release build runs all others, and `make test-fast` all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

PARTS = ("all", "kernels", "rest")
"""Values of ``--part``: every test, those that a checked build runs, and those that it does not."""
KERNELS = ("tests/unit/test_", "tests/property/test_", "tests/simulation/test_")
_PLAIN_UNIT = """
    adapters_waiting admission agent_commands agent_faults app attached bench_report cancelling cli
    cli_api
    cli_help cli_queue client_admin client_async client_lifecycle client_read config config_kafka
    doctor engine_process events frame_rights gateway_keys gateway_requests grants importing
    jetstream_adapter jetstream_storage
    kafka_adapter kafka_admin_clients kafka_administration kafka_attached kafka_brokers
    kafka_clients kafka_faststream kafka_groups kafka_guests kafka_keys kafka_limits kafka_offsets
    kafka_storage kafka_takeover kafka_wire layouts patience ports progress requests rpc
    subscription_ended supported telemetry testing opening types warmup watch wire_keys
"""
"""Of tests/unit, these run no kernels of their own: what they use is tested by the others.

So engines with brokers, clients of whole engines and requests: their kernels are those of
kafka_records, kafka_fetched, kafka_rebuilding, kafka_producing, the rings, the logs and the
simulations.
"""
NO_KERNELS = {
    *(f"tests/unit/test_{name}.py" for name in _PLAIN_UNIT.split()),
    # Thousands of rings show nothing that a few do not, but take a minute when each access is
    # checked. Leases are kept by Python alone.
    "tests/simulation/test_scale.py",
    "tests/simulation/test_leases.py",
}
_MACHINE_CODE = (
    "aes_gcm",
    "atomics_litmus",
    "close_beside_reading",
    "compiling",
    "crc32c",
    "object_kernels",
    "ring_races",
)
BOTH = {f"tests/unit/test_{name}.py" for name in _MACHINE_CODE}
"""Files of kernels whose subject is the machine code: races at full speed, what the compiler makes
of a function, instructions and calls of libraries. Both builds run them."""


def has_kernels(file: str) -> bool:
    """Whether a checked build runs tests of this file (``tests/unit/test_x.py``)."""
    return file.startswith(KERNELS) and file not in NO_KERNELS


def has_tests(part: str, path: Path, root: Path) -> bool:
    """Whether a file has tests of a part; some files are said to, and have none."""
    if part == "all":
        return True
    file = path.relative_to(root).as_posix()
    if part == "kernels":
        return has_kernels(file)
    return not has_kernels(file) or file in BOTH or "same_kernels" in path.read_text("utf-8")


def kept(items: Sequence[pytest.Item], part: str, checked: bool) -> list[pytest.Item]:
    """The tests of this part that this build runs.

    A checked build leaves out the `same_kernels`, as long as others of their file are there.
    """
    others = {item.path for item in items if not item.get_closest_marker("same_kernels")}

    def in_checked(item: pytest.Item) -> bool:
        return not item.get_closest_marker("same_kernels") or item.path not in others

    if checked:
        items = [item for item in items if in_checked(item)]
    if part == "kernels":
        return [item for item in items if has_kernels(_file(item))]
    if part == "rest":
        return [
            item
            for item in items
            if not has_kernels(_file(item)) or _file(item) in BOTH or not in_checked(item)
        ]
    return list(items)


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
