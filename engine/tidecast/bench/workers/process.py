"""A bench's process: ``python -m tidecast.bench.workers.process ROLE '{...}'``.

Reports a JSON line; a role that is a generator one a turn.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    """Run one role."""
    from tidecast.bench.workers.registry import ROLES

    config: dict[str, Any] = json.loads(sys.argv[2])
    core = config.pop("core", None)
    if core is not None and core < (os.cpu_count() or 1):
        os.sched_setaffinity(0, {core})
    outcome = ROLES[sys.argv[1]](**config)
    for each in (outcome,) if isinstance(outcome, dict) else outcome:
        sys.stdout.write(json.dumps(each) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
