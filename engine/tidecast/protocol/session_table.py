"""Session id -> small integer: open addressing in an ``int64[n, 2]`` array, n a power of two."""

from __future__ import annotations

import numpy as np

from tidecast.native.jit import inlined

SESSIONS_MAX = 16_384
ABSENT = -1000
_MIX = 0x9E3779B1


def session_table() -> np.ndarray:
    """An empty table."""
    return np.zeros((SESSIONS_MAX, 2), dtype=np.int64)


@inlined
def find_session(table, session):
    """The value of a session, or ABSENT."""
    i = (session * _MIX) & (SESSIONS_MAX - 1)
    for _ in range(SESSIONS_MAX):
        if table[i, 0] == session:
            return table[i, 1]
        if table[i, 0] == 0:
            return ABSENT
        i = (i + 1) & (SESSIONS_MAX - 1)
    return ABSENT


@inlined
def put_session(table, session, value):
    """Insert or change. False when the table is nearly full."""
    i = (session * _MIX) & (SESSIONS_MAX - 1)
    for _ in range(SESSIONS_MAX // 2):
        if table[i, 0] == session or table[i, 0] == 0:
            table[i, 0], table[i, 1] = session, value
            return True
        i = (i + 1) & (SESSIONS_MAX - 1)
    return False


def rebuild(table: np.ndarray, entries: dict[int, int]) -> None:
    """Replace the content from Python (sessions come and go rarely)."""
    table[:] = 0
    for session, value in entries.items():
        insert(table, session, value)


def insert(table: np.ndarray, session: int, value: int) -> None:
    """`put_session` from Python, for one more session."""
    i = (session * _MIX) & (SESSIONS_MAX - 1)
    while table[i, 0] not in (0, session):
        i = (i + 1) & (SESSIONS_MAX - 1)
    table[i, 0], table[i, 1] = session, value
