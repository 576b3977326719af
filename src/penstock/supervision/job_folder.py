"""A bounded job (replay or redrive) on disk: its plan, progress notes, and final result.

The plan is written before the first batch and never changed. A job without a final note was killed or stopped: it
continues as planned. Notes are written atomically; they are hints, since only the target knows what it has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, PlainSerializer, TypeAdapter

from penstock.checkpoint.atomic import put_whole
from penstock.model import OffsetRange

PLAN, PROGRESS, ATTEMPT = "plan.json", "progress.json", "attempt.json"

Ranges = Annotated[
    tuple[OffsetRange, ...],
    BeforeValidator(lambda lists: tuple(OffsetRange(*parts) for parts in lists)),
    PlainSerializer(lambda ranges: [[r.topic, r.partition, r.start, r.end] for r in ranges]),
]
"""Offset ranges; in JSON, a list of four values each."""
Folder = Annotated[Path, Field(exclude=True)]
"""The folder where the plan was found; not part of the plan."""


@dataclass(frozen=True)
class StoredJob:
    """A job and its folder; the fields of a subclass are the keys of its plan."""

    folder: Folder
    END: ClassVar[str]
    """The file that notes its end."""

    @property
    def finished(self) -> bool:
        """Whether its end is noted: a hint, for its targets may have been restored since."""
        return (self.folder / self.END).exists()

    def note_end(self, facts: Mapping[str, Any]) -> None:
        """Note that it has ended, and what it did."""
        write_note(self.folder / self.END, {"finished_at": datetime.now(UTC).isoformat(), **facts})

    def write_plan(self, folder: Path) -> None:
        """Write the plan into a folder: its own, or one that is to become its own."""
        write_note(folder / PLAN, TypeAdapter(type(self)).dump_python(self, mode="json", by_alias=True))

    @classmethod
    def from_plan(cls, body: Mapping[str, Any], folder: Path) -> Self:
        """The job of a plan."""
        return TypeAdapter(cls).validate_python({**body, "folder": folder})

    @classmethod
    def all_in(cls, root: Path) -> list[Self]:
        """The planned jobs, by name; a plan that is still being written does not count."""
        plans = sorted(plan for plan in root.glob(f"*/{PLAN}") if not plan.parent.name.startswith("."))
        return [cls.from_plan(read_note(plan), plan.parent) for plan in plans]


def write_note(file: Path, body: Mapping[str, Any]) -> None:
    """Write a note, atomically."""
    put_whole(file, json.dumps(body, indent=1).encode())


def read_note(file: Path) -> dict[str, Any]:
    """A note; empty if it is missing."""
    try:
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    except FileNotFoundError:
        return {}
