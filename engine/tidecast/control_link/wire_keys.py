"""Secrets of sealed transports that the control service hands out, kept for the next start.

They go into `wire-keys.json`, which the node reads again when it changes: an engine seals its
transports also while the service is away.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tidecast.errors import ConfigError, NotFound
from tidecast.node.sealing.wire_keys import (
    FILE_NAME,
    WireKeys,
    check_wire_keys,
    load_wire_keys,
    save_wire_keys,
)


def keep_wire_keys(data_dir: Path, raw: dict[str, Any]) -> None:
    """Save the epochs of the service's transports; epochs of others in the file stay.

    Raises ConfigError, without a secret in it, when they are wrong: the file stays as it is.
    """
    if not raw:
        return
    path = data_dir / FILE_NAME
    try:
        given = msgspec.convert({"transports": raw}, WireKeys)
    except msgspec.ValidationError:
        raise ConfigError("wire keys of the control service: a field is missing or wrong") from None
    try:
        held = load_wire_keys(path)
    except NotFound:
        held = WireKeys()
    wanted = WireKeys(transports={**held.transports, **given.transports})
    check_wire_keys(wanted, "wire keys of the control service")
    if wanted != held:
        save_wire_keys(wanted, path)
