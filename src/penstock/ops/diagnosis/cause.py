"""What a diagnosis says: causes, the likeliest first, each with its evidence and the one thing to change."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Cause:
    """One likely reason why a pipeline is slow or stuck."""

    code: str
    weight: float
    """From 0 to 1: how much of the trouble it explains. What is stuck comes first, what is general comes last."""
    summary: str
    evidence: tuple[str, ...]
    """The figures, with both sides of each."""
    change: str
    """The one thing to change: a key of the file with its value, or a command."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "code": self.code,
            "weight": round(self.weight, 2),
            "summary": self.summary,
            "evidence": list(self.evidence),
            "change": self.change,
        }


@dataclass(frozen=True)
class Diagnosis:
    """What was found at one moment. Without causes: what was looked at, and how it stands."""

    pipeline: str
    at: datetime
    causes: tuple[Cause, ...]
    looked: tuple[str, ...] = field(default=())
    notes: tuple[str, ...] = field(default=())
    """What could not be looked at, and what the reader should know of the rest."""
    idle: str | None = None
    """Since when a pipeline that ended cleanly does not run, and what waits; none while it runs, or it is a cause."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "pipeline": self.pipeline,
            "at": self.at.isoformat(),
            "causes": [cause.as_json() for cause in self.causes],
            "idle": self.idle,
            "looked": list(self.looked),
            "notes": list(self.notes),
        }
