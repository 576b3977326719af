"""The options of a fleet, its events besides those of its runs, and its summary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from penstock.engine.listener import Event
from penstock.errors import PenstockError
from penstock.preflight.options import RunOptions, RunSummary


@dataclass(frozen=True)
class FleetOptions:
    """What the command line may ask of a fleet. What `run` says holds for every pipeline."""

    run: RunOptions = field(default_factory=RunOptions)
    watch: bool = False
    """Whether to follow files that are added, changed and removed."""
    first_delay: float = 10.0
    longest_delay: float = 300.0
    look_every: float = 1.0


@dataclass(frozen=True)
class Waiting:
    """A pipeline stopped alone by an error. It is tried again in `delay` seconds, or never by itself."""

    error: PenstockError
    attempt: int
    delay: float | None
    again: bool
    """Whether the same event was reported just before."""


@dataclass(frozen=True)
class Ended:
    """A pipeline is drained, or stopped as it was asked to."""

    summary: RunSummary


@dataclass(frozen=True)
class FileChanged:
    """A file was added, changed or removed."""

    file: Path
    change: Literal["added", "changed", "removed"]


@dataclass(frozen=True)
class FileRefused:
    """A file that was added or changed cannot be taken up as it is now."""

    file: Path
    error: PenstockError
    running: bool
    """Whether the pipeline continues unchanged."""


FleetEvent = Event | Waiting | Ended | FileChanged | FileRefused
FleetListener = Callable[[str, FleetEvent], None]
"""Called with the name of the pipeline, or the file without one, and the event; from any thread, one at a time."""


@dataclass(frozen=True)
class Outcome:
    """What became of one pipeline: the error that it ended by, or waits with; none where it ended well."""

    error: PenstockError | None = None


_WORST = (4, 3, 2, 75)


@dataclass
class FleetSummary:
    """What became of each pipeline, by its name, and what all of them carried."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    carried: RunSummary = field(default_factory=RunSummary)
    """Every batch, including those of restarted pipelines and removed files."""

    @property
    def errors(self) -> dict[str, PenstockError]:
        """Those that did not end well."""
        return {name: one.error for name, one in self.outcomes.items() if one.error is not None}

    @property
    def exit_code(self) -> int:
        """0 where all ended well; else that of the worst, one that cannot go on before one that may later."""
        found = {error.exit_code for error in self.errors.values()}
        return next((code for code in _WORST if code in found), 0)
