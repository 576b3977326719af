"""What the care of a table looks at and what it did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableFigures:
    """A table as its readers meet it."""

    files: int
    small_files: int
    """Small files that can be combined with another of the same partition."""
    size_bytes: int
    versions: int
    """Versions or snapshots that can still be read."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did."""

    removed: int = 0
    added: int = 0
    gave_way: int = 0
    """How many times it stopped, or lost rewritten files, because the stream needed the table."""
    left: str | None = None
    """Why it ended early."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a clean-up removed, or would."""

    files: int = 0
    versions: int = 0
    note: str | None = None
    """What it skipped, and why."""
