"""The packet numbers of a sender that came: the highest, and a bitmap, moved as in RFC 6479.

The bitmap is a ring of 64 words. A word is cleared when the highest number enters it, so a word is
always incomplete, and the window is 63 words wide.
"""

from __future__ import annotations

import numpy as np

from tidecast.native.jit import inlined

WINDOW_WORDS = 64
WINDOW_NUMBERS = (WINDOW_WORDS - 1) * 64
"""A number that is further behind the highest number counts as replayed."""
_MASK = WINDOW_WORDS - 1


@inlined
def is_new(words, highest, number):
    """Whether ``number`` is in the window and never came. ``words``: int64[64]."""
    if number > highest:
        return True
    if highest - number >= WINDOW_NUMBERS:
        return False
    return (words[(number >> 6) & _MASK] >> (number & 63)) & 1 == 0


@inlined
def note_number(words, highest, number):
    """Note that a new number came. Returns the highest number now."""
    word, last = number >> 6, highest >> 6
    if number > highest:
        for k in range(min(word - last, WINDOW_WORDS)):
            words[(last + 1 + k) & _MASK] = 0
        highest = number
    words[word & _MASK] |= 1 << (number & 63)
    return highest


def refuse_before(windows: np.ndarray, highest: np.ndarray, number: int) -> None:
    """Mark all numbers below ``number`` as received. ``windows``: rows of int64[64]."""
    last = number - 1
    windows[:] = -1
    windows[:, (last >> 6) & _MASK] = np.uint64((2 << (last & 63)) - 1 & (1 << 64) - 1).view(
        np.int64
    )
    highest[:] = last
