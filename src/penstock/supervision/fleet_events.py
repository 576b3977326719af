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
    """The command-line options of a fleet. `run` applies to every pipeline."""

    run: RunOptions = field(default_factory=RunOptions)
    watch: bool = False
    """Whether to follow files that are added, changed and removed."""
    first_delay: float = 10.0
    longest_delay: float = 300.0
    look_every: float = 1.0


@dataclass(frozen=True)
class Waiting:
    """A pipeline stopped with an error. It is retried in `delay` seconds, or not automatically."""

    error: PenstockError
    attempt: int
    delay: float | None
    again: bool
    """Whether the same event was reported just before."""


@dataclass(frozen=True)
class Ended:
    """A pipeline is drained, or stopped on request."""

    summary: RunSummary


@dataclass(frozen=True)
class FileChanged:
    """A file was added, changed or removed."""

    file: Path
    change: Literal["added", "changed", "removed"]


@dataclass(frozen=True)
class FileRefused:
    """A file that was added or changed is not usable now."""

    file: Path
    error: PenstockError
    running: bool
    """Whether the pipeline continues unchanged."""


FleetEvent = Event | Waiting | Ended | FileChanged | FileRefused
FleetListener = Callable[[str, FleetEvent], None]
"""Called with the name of the pipeline, or the file without one, and the event; from any thread, one at a time."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one pipeline: the error that it ended or waits with; None if it succeeded."""

    error: PenstockError | None = None


_WORST = (4, 3, 2, 75)


@dataclass
class FleetSummary:
    """The outcome of each pipeline, by name, and the totals of all."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    carried: RunSummary = field(default_factory=RunSummary)
    """Every batch, including those of restarted pipelines and removed files."""

    @property
    def errors(self) -> dict[str, PenstockError]:
        """Those that did not end well."""
        return {name: one.error for name, one in self.outcomes.items() if one.error is not None}

    @property
    def exit_code(self) -> int:
        """0 if all succeeded; otherwise that of the worst, a terminal error before a transient one."""
        found = {error.exit_code for error in self.errors.values()}
        return next((code for code in _WORST if code in found), 0)
