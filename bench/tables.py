"""Tables as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def share(part: float, whole: float) -> str:
    """A part of a whole, in percent."""
    return f"{part / whole:.0%}" if whole else ""
