"""Kernels of durable consumers that run in the client."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidecast.buffers import member_ring
from tidecast.native.jit import kernel
from tidecast.native.mapped import Bytes
from tidecast.native.memory import copy

Rows = np.ndarray[Any, np.dtype[np.int64]]


@kernel
def gather(memory: Bytes, rows: Rows, offsets: Rows, out: Bytes) -> None:
    """Copy the payloads of all ``rows`` into ``out``, one behind the other."""
    for i in range(rows.shape[0]):
        copy(out, offsets[i], memory, rows[i, member_ring.ROW_AT], rows[i, member_ring.ROW_LENGTH])
