"""A described record: named fields at offsets, checked for overlap, drawn as a bit diagram."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Field:
    """One field: offset and width in bytes, and its meaning."""

    name: str
    at: int
    width: int
    meaning: str


@dataclass(frozen=True, slots=True)
class Layout:
    """A record of ``size`` bytes. Fields must be in order and must not overlap."""

    name: str
    size: int
    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        end = 0
        for field in self.fields:
            if field.at < end:
                raise ValueError(f"{self.name}.{field.name} overlaps the field before it")
            end = field.at + field.width
        if end > self.size:
            raise ValueError(f"{self.name} is longer than {self.size} bytes")

    def diagram(self, row_bytes: int = 8) -> str:
        """ASCII diagram, ``row_bytes`` bytes a row; wide fields and holes are folded."""
        cells: list[tuple[str, int, int]] = []
        end = 0
        for field in self.fields:
            if field.at > end:
                cells.append(("(unused)", end, field.at - end))
            cells.append((field.name, field.at, field.width))
            end = field.at + field.width
        if end < self.size:
            cells.append(("(unused)", end, self.size - end))
        rows: list[list[tuple[str, int, int]]] = []
        room = 0
        for name, at, width in cells:
            if room <= 0 or width > room:
                rows.append([])
                room = row_bytes - at % row_bytes if width < row_bytes else row_bytes
            rows[-1].append((name, at, width))
            room -= width
        rule = "+" + "-" * (row_bytes * 9 - 1) + "+"
        lines = [f"{self.name} ({self.size} bytes)", "      " + rule]
        for row in rows:
            text = "|"
            used = 0
            for name, _, width in row:
                span = min(width, row_bytes - used)
                label = name if width <= row_bytes else f"{name} ({width} bytes)"
                text += f"{label:^{span * 9 - 1}.{span * 9 - 1}}|"
                used += span
            if used < row_bytes:
                text += " " * ((row_bytes - used) * 9 - 1) + "|"
            lines += [f"{row[0][1]:>5} {text}", "      " + rule]
        return "\n".join(lines)

    def table(self) -> str:
        """Markdown table of offsets, widths and meanings."""
        rows = [f"| {f.at} | {f.width} | `{f.name}` | {f.meaning} |" for f in self.fields]
        return "\n".join(["| at | bytes | field | meaning |", "|---|---|---|---|", *rows])
