"""What a slot leaves behind for the driver: who wrote it, how much, and how to commit it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.model.offsets import OffsetRange


class Guarantee(Enum):
    """What a sink promises about each record."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"


@dataclass(frozen=True, slots=True)
class SlotAttempt:
    """One try of one slot. Staged data is named by it, so that a task run twice does no harm."""

    slot: int
    attempt: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one slot staged for one sink. `items` are the sink's own and small; see `stored_manifests`."""

    sink: str
    writer: SlotAttempt
    rows: int
    size_bytes: int
    items: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that a target can never hold, or a step refuses: its record, and why, for the quarantine."""

    record: OffsetRange
    """The one offset of the record."""
    code: str
    message: str
    stage: str = "sink"
    by: str = ""
    """The sinks that refused it, or the route whose step did; empty if the whole pipeline refused it."""


@dataclass(frozen=True, slots=True)
class MergeRules:
    """How rows meet the rows that are there.

    Of the rows of one key in a batch the newest counts: the greatest `when_newer` where it is given, then the
    greatest source position. A row whose `DELETES` column is true deletes.
    """

    keys: tuple[str, ...]
    when_newer: str | None = None
    """A row is applied only if this column is not less than in the existing row."""
    insert_only: bool = False
    """Existing rows are kept; of several new rows the oldest is inserted."""
    by_position: bool = False
    """An existing row is kept if it came from the same topic and partition with a greater offset."""
    prune_by: tuple[str, ...] = ()
    """Columns that never change for a key: only matching parts of the target are read."""
