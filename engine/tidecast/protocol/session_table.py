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


def insert(table: np.ndarray, session: int, value: int) -> None:
    """`put_session` from Python, for a new session."""
    i = (session * _MIX) & (SESSIONS_MAX - 1)
    while table[i, 0] not in (0, session):
        i = (i + 1) & (SESSIONS_MAX - 1)
    table[i, 0], table[i, 1] = session, value


def remove(table: np.ndarray, session: int) -> None:
    """Forget a session, if it is there. Later sessions move up after a collision."""
    mask = SESSIONS_MAX - 1
    i = (session * _MIX) & mask
    while table[i, 0] != session:
        if table[i, 0] == 0:
            return
        i = (i + 1) & mask
    hole = i
    while True:
        i = (i + 1) & mask
        other = int(table[i, 0])
        if other == 0:
            break
        home = (other * _MIX) & mask
        if (i - home) & mask >= (i - hole) & mask:
            table[hole] = table[i]
            hole = i
    table[hole] = 0
