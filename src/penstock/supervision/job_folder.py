"""The folder of a bounded job, a replay or a redrive: its plan, notes on the way, and at the end what it did.

The plan is written before the first batch and never changed. A job whose end is not noted was killed or stopped: it
goes on as planned. Notes are whole or not there; they are hints, for what a target holds only the target says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.checkpoint.atomic import put_whole
from penstock.model import OffsetRange

PLAN, PROGRESS, ATTEMPT = "plan.json", "progress.json", "attempt.json"


def write_note(file: Path, body: Mapping[str, Any]) -> None:
    """Put a note down, whole."""
    put_whole(file, json.dumps(body, indent=1).encode())


def read_note(file: Path) -> dict[str, Any]:
    """A note; empty where it is not there."""
    try:
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    except FileNotFoundError:
        return {}


def note_end(file: Path, facts: Mapping[str, Any]) -> None:
    """Note that a job has ended, and what it did."""
    write_note(file, {"finished_at": datetime.now(UTC).isoformat(), **facts})


def jobs_in(root: Path) -> list[Path]:
    """The folders of the jobs that were planned here, by name; one whose plan is still being written is none."""
    return sorted(plan.parent for plan in root.glob(f"*/{PLAN}") if not plan.parent.name.startswith("."))


def ranges_as_json(ranges: Iterable[OffsetRange]) -> list[list[str | int]]:
    """Offset ranges as notes have them."""
    return [[r.topic, r.partition, r.start, r.end] for r in ranges]


def ranges_from_json(body: Iterable[Any]) -> tuple[OffsetRange, ...]:
    """The offset ranges of a note."""
    return tuple(OffsetRange(*parts) for parts in body)
