"""What the care of a table looks at and what it did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableFigures:
    """A table as its readers meet it."""

    files: int
    small_files: int
    """Of these, the ones of which two in the same partition fit into one file of the wanted size."""
    size_bytes: int
    versions: int
    """Versions or snapshots that can still be read."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did."""

    removed: int = 0
    added: int = 0
    gave_way: int = 0
    """How often it broke off, or lost what it had rewritten, because the stream wanted the table."""
    left: str | None = None
    """Why it ended before all was done."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a clean-up removed, or would."""

    files: int = 0
    versions: int = 0
    note: str | None = None
    """What it left alone, and why."""
