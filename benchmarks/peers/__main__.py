"""Runs the usual configurations of a bench: python -m benchmarks.peers BENCH [--peer NAME]."""

import argparse
import json
import signal
import sys
from typing import Any

from benchmarks.peers import BENCHES, PEERS, PeerError, cases, missing, run


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def line(outcome: dict[str, Any], case: dict[str, Any]) -> str:
    shown = " ".join(f"{key}={value}" for key, value in case.items())
    figures = " ".join(f"{key}={value:,}" for key, value in outcome["metrics"].items())
    return f"{outcome['peer']:10} {outcome['bench']:10} {shown:44} {figures}"


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("bench", choices=(*BENCHES, "all"))
    parser.add_argument("--peer", action="append", choices=tuple(PEERS), help="default: every peer")
    parser.add_argument("--seconds", type=float, help="measured, a run (default: the peer's own)")
    parser.add_argument("--json", action="store_true", help="one JSON object a run")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    given = parse(arguments)
    failures = 0
    for bench in BENCHES if given.bench == "all" else (given.bench,):
        for peer in given.peer or PEERS:
            usual = cases(peer, bench)
            reason = missing(peer)
            if usual and reason:
                usual = []
                failures += 1
                if not given.json:
                    say(f"{peer:10} {bench:10} skipped: {reason}")
            for case in usual:
                if given.seconds:
                    case["seconds"] = given.seconds
                try:
                    outcome = run(peer, bench, **case)
                except PeerError as error:
                    failures += 1
                    outcome = {"peer": peer, "bench": bench, "config": case, "error": str(error)}
                    text = f"{peer:10} {bench:10} {case} FAILED ({error.code}): {error}"
                else:
                    text = line(outcome, case)
                say(json.dumps(outcome) if given.json else text)
    return 1 if failures else 0


if __name__ == "__main__":
    # told to end: as an exception, so that the run's processes and files go first
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main(sys.argv[1:]))
