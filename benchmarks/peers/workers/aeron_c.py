"""One process of the Aeron C benches: runs one role of c/aeron_bench.c.

Started as `python aeron_c.py CONFIG_JSON` by the Python that has pyaeron. Ends at its own
deadline, or when its standard input closes.
"""

import ctypes
import importlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import report

ROLES = {"pub": 0, "sub": 1, "ping": 2, "pong": 3, "driver": 4}
THREADING = {"dedicated": 0, "shared_network": 1, "shared": 2, "inline": 3}


class BenchConfig(ctypes.Structure):
    """`bench_config_t`."""

    _fields_ = (
        ("dir", ctypes.c_char_p),
        ("channel", ctypes.c_char_p),
        ("back_channel", ctypes.c_char_p),
        ("role", ctypes.c_int32),
        ("embedded", ctypes.c_int32),
        ("threading", ctypes.c_int32),
        ("message_bytes", ctypes.c_int32),
        ("batch", ctypes.c_int32),
        ("rounds", ctypes.c_int32),
        ("warmup_rounds", ctypes.c_int32),
        ("give_way", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("warmup_ns", ctypes.c_int64),
        ("measure_ns", ctypes.c_int64),
        ("deadline_ns", ctypes.c_int64),
        ("stop", ctypes.POINTER(ctypes.c_int32)),
        ("rtt_ns", ctypes.POINTER(ctypes.c_int64)),
    )


class BenchResult(ctypes.Structure):
    """`bench_result_t`."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in ("offered", "back_pressured", "rounds_done", "elapsed_ns")
    )


def load_bench(library: str) -> Any:
    """The bench library, with Aeron's symbols made visible to it first."""
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
    importlib.import_module("pyaeron")
    bench = ctypes.CDLL(library)
    bench.aeron_bench_run.argtypes = [ctypes.POINTER(BenchConfig), ctypes.POINTER(BenchResult)]
    bench.aeron_bench_run.restype = ctypes.c_int
    return bench


def main() -> int:
    given: dict[str, Any] = json.loads(sys.argv[1])
    os.environ.update(given["environment"])
    bench = load_bench(given["library"])
    stop = ctypes.c_int32(0)
    rtt_ns = (ctypes.c_int64 * max(1, given["rounds"]))()
    config = BenchConfig(
        dir=given["dir"].encode(),
        channel=given["channel"].encode(),
        back_channel=given["back_channel"].encode(),
        role=ROLES[given["role"]],
        embedded=int(given["embedded"]),
        threading=THREADING[given["threading"]],
        message_bytes=given["message_bytes"],
        batch=given["batch"],
        rounds=given["rounds"],
        warmup_rounds=given["warmup_rounds"],
        give_way=int(given["give_way"]),
        warmup_ns=int(given["warmup_s"] * 1e9),
        measure_ns=int(given["seconds"] * 1e9),
        deadline_ns=int(given["deadline_s"] * 1e9),
        stop=ctypes.pointer(stop),
        rtt_ns=ctypes.cast(rtt_ns, ctypes.POINTER(ctypes.c_int64)),
    )
    threading.Thread(target=lambda: report.until_stopped(stop), daemon=True).start()
    report.pin(given["core"])
    result = BenchResult()
    status = int(bench.aeron_bench_run(ctypes.byref(config), ctypes.byref(result)))
    if status == 0 and given["role"] != "sub":  # a subscriber has said its result
        fields = {name: getattr(result, name) for name, _ in BenchResult._fields_}
        report.result(**fields, **report.percentiles(rtt_ns[: result.rounds_done]))
    return 0 if status == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
