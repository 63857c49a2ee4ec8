"""`struct` on NumPy arrays: buffers, which their types say only from Python 3.12 on."""

from __future__ import annotations

import struct
from typing import Any

pack_into: Any = struct.pack_into
unpack_from: Any = struct.unpack_from
