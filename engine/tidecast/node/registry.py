"""A dictionary by id with look-ups by other keys, each at the cost of its results."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

V = TypeVar("V")


class Indexed(dict[int, V]):
    """Values by id, and by the result of each function of ``keys``, which must not change.

    Values are added by ``[id] =``, and removed by ``pop`` or ``del``.
    """

    def __init__(self, **keys: Callable[[V], Hashable]) -> None:
        super().__init__()
        self._keys = keys
        self._by: dict[str, dict[Hashable, dict[int, V]]] = {name: {} for name in keys}

    def of(self, name: str, key: Hashable) -> list[V]:
        """Values whose key ``name`` is ``key``, in the order in which they were added."""
        return list(self._by[name].get(key, {}).values())

    def __setitem__(self, number: int, value: V) -> None:
        """See `dict`."""
        self.pop(number, None)
        super().__setitem__(number, value)
        for name, key in self._keys.items():
            self._by[name].setdefault(key(value), {})[number] = value

    def __delitem__(self, number: int) -> None:
        """See `dict`."""
        self.pop(number)

    def pop(self, number: int, *default: Any) -> Any:
        """See `dict`."""
        if number not in self:
            return super().pop(number, *default)
        value = super().pop(number)
        for name, key in self._keys.items():
            same = self._by[name][key(value)]
            del same[number]
            if not same:
                del self._by[name][key(value)]
        return value
