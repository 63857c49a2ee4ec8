"""Names that programs use, for `dir` and completion of the client's objects."""

from __future__ import annotations

from typing import ClassVar


class Public:
    """Base of the client's objects: `dir` leaves out the steps and hooks of the client itself."""

    PUBLIC: ClassVar[str]
    """The names, with spaces between."""

    def __dir__(self) -> list[str]:
        own = {
            name
            for kind in type(self).__mro__
            if not kind.__module__.startswith("tidecast.")
            for name in vars(kind)
            if not name.startswith("_")
        }
        return sorted({*self.PUBLIC.split(), *own})
